// matmul_affine5.metal: prefill rows by affine matrices of 5-bit codes; scales bf16, f16 or f32.
#include "matmul.h"

INSTANTIATE_MATMUL(affine5_bf16, kAffine + 5, kBF16)
INSTANTIATE_MATMUL(affine5_f16, kAffine + 5, kF16)
INSTANTIATE_MATMUL(affine5_f32, kAffine + 5, kF32)
