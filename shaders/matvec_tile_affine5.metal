// matvec_tile_affine5.metal: decode rows by affine matrices of 5-bit codes on matrix units; scales bf16, f16 or f32.
#include "matvec_tile.h"

INSTANTIATE_MATVEC_TILE(affine5_bf16, kAffine + 5, kBF16, 64)
INSTANTIATE_MATVEC_TILE(affine5_f16, kAffine + 5, kF16, 64)
INSTANTIATE_MATVEC_TILE(affine5_f32, kAffine + 5, kF32, 64)
