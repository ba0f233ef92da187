// experts_iq4_xs.metal: products with the weights of chosen experts, stored as iq4_xs.
#include "experts.h"

INSTANTIATE_EXPERTS(iq4_xs, kIq4, kSigned)
