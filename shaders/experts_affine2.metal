// experts_affine2.metal: products with the weights of chosen experts, stored as affine codes of 2 bits; scales bf16, f16 or f32.
#include "experts.h"

INSTANTIATE_EXPERTS(affine2_bf16, kAffine + 2, kBF16)
INSTANTIATE_EXPERTS(affine2_f16, kAffine + 2, kF16)
INSTANTIATE_EXPERTS(affine2_f32, kAffine + 2, kF32)
