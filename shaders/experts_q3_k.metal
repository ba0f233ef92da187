// experts_q3_k.metal: products with the weights of chosen experts, stored as q3_k.
#include "experts.h"

INSTANTIATE_EXPERTS(q3_k, kFine + kAffine + 3, kSigned)
