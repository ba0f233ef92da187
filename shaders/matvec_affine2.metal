// matvec_affine2.metal: decode rows by affine matrices of 2-bit codes; scales bf16, f16 or f32.
#include "matvec.h"

INSTANTIATE_MATVEC(affine2_bf16, kAffine + 2, kBF16)
INSTANTIATE_MATVEC(affine2_f16, kAffine + 2, kF16)
INSTANTIATE_MATVEC(affine2_f32, kAffine + 2, kF32)
