// experts_q4_0.metal: products with the weights of chosen experts, stored as q4_0.
#include "experts.h"

INSTANTIATE_EXPERTS(q4_0, kAffine + 4, kSymmetric)
