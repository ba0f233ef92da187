// experts_q4_k.metal: products with the weights of chosen experts, stored as q4_k.
#include "experts.h"

INSTANTIATE_EXPERTS(q4_k, kAffine + 4, kMinimums)
