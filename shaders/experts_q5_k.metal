// experts_q5_k.metal: products with the weights of chosen experts, stored as q5_k.
#include "experts.h"

INSTANTIATE_EXPERTS(q5_k, kAffine + 5, kMinimums)
