// matvec_tile_affine3.metal: decode rows by affine matrices of 3-bit codes on matrix units; scales bf16, f16 or f32.
#include "matvec_tile.h"

INSTANTIATE_MATVEC_TILE(affine3_bf16, kAffine + 3, kBF16, 64)
INSTANTIATE_MATVEC_TILE(affine3_f16, kAffine + 3, kF16, 64)
INSTANTIATE_MATVEC_TILE(affine3_f32, kAffine + 3, kF32, 64)
