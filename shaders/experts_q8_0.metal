// experts_q8_0.metal: products with the weights of chosen experts, stored as q8_0.
#include "experts.h"

INSTANTIATE_EXPERTS(q8_0, kAffine + 8, kSymmetric)
