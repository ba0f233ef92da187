// matvec_tile_affine4.metal: decode rows by affine matrices of 4-bit codes on matrix units; scales bf16, f16 or f32.
#include "matvec_tile.h"

INSTANTIATE_MATVEC_TILE(affine4_bf16, kAffine + 4, kBF16, 64)
INSTANTIATE_MATVEC_TILE(affine4_bf16, kAffine + 4, kBF16, 32)
INSTANTIATE_MATVEC_TILE(affine4_f16, kAffine + 4, kF16, 64)
INSTANTIATE_MATVEC_TILE(affine4_f16, kAffine + 4, kF16, 32)
INSTANTIATE_MATVEC_TILE(affine4_f32, kAffine + 4, kF32, 64)
INSTANTIATE_MATVEC_TILE(affine4_f32, kAffine + 4, kF32, 32)
