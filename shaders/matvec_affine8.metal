// matvec_affine8.metal: decode rows by affine matrices of 8-bit codes; scales bf16, f16 or f32.
#include "matvec.h"

INSTANTIATE_MATVEC(affine8_bf16, kAffine + 8, kBF16)
INSTANTIATE_MATVEC(affine8_f16, kAffine + 8, kF16)
INSTANTIATE_MATVEC(affine8_f32, kAffine + 8, kF32)
