// matvec_affine3.metal: decode rows by affine matrices of 3-bit codes; scales bf16, f16 or f32.
#include "matvec.h"

INSTANTIATE_MATVEC(affine3_bf16, kAffine + 3, kBF16)
INSTANTIATE_MATVEC(affine3_f16, kAffine + 3, kF16)
INSTANTIATE_MATVEC(affine3_f32, kAffine + 3, kF32)
