// experts_q6_k.metal: products with the weights of chosen experts, stored as q6_k.
#include "experts.h"

INSTANTIATE_EXPERTS(q6_k, kFine + kAffine + 6, kSigned)
