// experts_affine3.metal: products with the weights of chosen experts, stored as affine codes of 3 bits; scales bf16, f16 or f32.
#include "experts.h"

INSTANTIATE_EXPERTS(affine3_bf16, kAffine + 3, kBF16)
INSTANTIATE_EXPERTS(affine3_f16, kAffine + 3, kF16)
INSTANTIATE_EXPERTS(affine3_f32, kAffine + 3, kF32)
