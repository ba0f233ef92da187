// experts_q5_0.metal: products with the weights of chosen experts, stored as q5_0.
#include "experts.h"

INSTANTIATE_EXPERTS(q5_0, kAffine + 5, kSymmetric)
