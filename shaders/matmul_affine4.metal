// matmul_affine4.metal: prefill rows by affine matrices of 4-bit codes; scales bf16, f16 or f32.
#include "matmul.h"

INSTANTIATE_MATMUL(affine4_bf16, kAffine + 4, kBF16)
INSTANTIATE_MATMUL(affine4_f16, kAffine + 4, kF16)
INSTANTIATE_MATMUL(affine4_f32, kAffine + 4, kF32)
