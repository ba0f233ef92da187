// experts_affine8.metal: products with the weights of chosen experts, stored as affine codes of 8 bits; scales bf16, f16 or f32.
#include "experts.h"

INSTANTIATE_EXPERTS(affine8_bf16, kAffine + 8, kBF16)
INSTANTIATE_EXPERTS(affine8_f16, kAffine + 8, kF16)
INSTANTIATE_EXPERTS(affine8_f32, kAffine + 8, kF32)
