// matvec_affine5.metal: decode rows by affine matrices of 5-bit codes; scales bf16, f16 or f32.
#include "matvec.h"

INSTANTIATE_MATVEC(affine5_bf16, kAffine + 5, kBF16)
INSTANTIATE_MATVEC(affine5_f16, kAffine + 5, kF16)
INSTANTIATE_MATVEC(affine5_f32, kAffine + 5, kF32)
