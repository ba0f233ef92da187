// experts_q2_k.metal: products with the weights of chosen experts, stored as q2_k.
#include "experts.h"

INSTANTIATE_EXPERTS(q2_k, kFine + kAffine + 2, kMinimums)
