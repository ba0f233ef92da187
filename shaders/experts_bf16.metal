// experts_bf16.metal: products with the weights of chosen experts, stored as bf16.
#include "experts.h"

INSTANTIATE_EXPERTS(bf16, kBF16, kBF16)
