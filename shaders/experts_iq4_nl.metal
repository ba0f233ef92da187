// experts_iq4_nl.metal: products with the weights of chosen experts, stored as iq4_nl.
#include "experts.h"

INSTANTIATE_EXPERTS(iq4_nl, kIq4, kSymmetric)
