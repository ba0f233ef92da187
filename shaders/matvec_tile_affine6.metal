// matvec_tile_affine6.metal: decode rows by affine matrices of 6-bit codes on matrix units; scales bf16, f16 or f32.
#include "matvec_tile.h"

INSTANTIATE_MATVEC_TILE(affine6_bf16, kAffine + 6, kBF16, 64)
INSTANTIATE_MATVEC_TILE(affine6_f16, kAffine + 6, kF16, 64)
INSTANTIATE_MATVEC_TILE(affine6_f32, kAffine + 6, kF32, 64)
