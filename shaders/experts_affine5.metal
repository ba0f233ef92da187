// experts_affine5.metal: products with the weights of chosen experts, stored as affine codes of 5 bits; scales bf16, f16 or f32.
#include "experts.h"

INSTANTIATE_EXPERTS(affine5_bf16, kAffine + 5, kBF16)
INSTANTIATE_EXPERTS(affine5_f16, kAffine + 5, kF16)
INSTANTIATE_EXPERTS(affine5_f32, kAffine + 5, kF32)
