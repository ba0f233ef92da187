// experts_affine4.metal: products with the weights of chosen experts, stored as affine codes of 4 bits; scales bf16, f16 or f32.
#include "experts.h"

INSTANTIATE_EXPERTS(affine4_bf16, kAffine + 4, kBF16)
INSTANTIATE_EXPERTS(affine4_f16, kAffine + 4, kF16)
INSTANTIATE_EXPERTS(affine4_f32, kAffine + 4, kF32)
