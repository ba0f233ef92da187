// matmul_affine3.metal: prefill rows by affine matrices of 3-bit codes; scales bf16, f16 or f32.
#include "matmul.h"

INSTANTIATE_MATMUL(affine3_bf16, kAffine + 3, kBF16)
INSTANTIATE_MATMUL(affine3_f16, kAffine + 3, kF16)
INSTANTIATE_MATMUL(affine3_f32, kAffine + 3, kF32)
