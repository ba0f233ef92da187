// experts_affine6.metal: products with the weights of chosen experts, stored as affine codes of 6 bits; scales bf16, f16 or f32.
#include "experts.h"

INSTANTIATE_EXPERTS(affine6_bf16, kAffine + 6, kBF16)
INSTANTIATE_EXPERTS(affine6_f16, kAffine + 6, kF16)
INSTANTIATE_EXPERTS(affine6_f32, kAffine + 6, kF32)
