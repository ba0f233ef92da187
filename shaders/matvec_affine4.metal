// matvec_affine4.metal: decode rows by affine matrices of 4-bit codes; scales bf16, f16 or f32.
#include "matvec.h"

INSTANTIATE_MATVEC(affine4_bf16, kAffine + 4, kBF16)
INSTANTIATE_MATVEC(affine4_f16, kAffine + 4, kF16)
INSTANTIATE_MATVEC(affine4_f32, kAffine + 4, kF32)
