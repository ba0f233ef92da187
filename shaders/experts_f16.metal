// experts_f16.metal: products with the weights of chosen experts, stored as f16.
#include "experts.h"

INSTANTIATE_EXPERTS(f16, kF16, kF16)
