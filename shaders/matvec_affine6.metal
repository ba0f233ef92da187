// matvec_affine6.metal: decode rows by affine matrices of 6-bit codes; scales bf16, f16 or f32.
#include "matvec.h"

INSTANTIATE_MATVEC(affine6_bf16, kAffine + 6, kBF16)
INSTANTIATE_MATVEC(affine6_f16, kAffine + 6, kF16)
INSTANTIATE_MATVEC(affine6_f32, kAffine + 6, kF32)
