// matvec_tile_affine8.metal: decode rows by affine matrices of 8-bit codes on matrix units; scales bf16, f16 or f32.
#include "matvec_tile.h"

INSTANTIATE_MATVEC_TILE(affine8_bf16, kAffine + 8, kBF16, 64)
INSTANTIATE_MATVEC_TILE(affine8_bf16, kAffine + 8, kBF16, 32)
INSTANTIATE_MATVEC_TILE(affine8_f16, kAffine + 8, kF16, 64)
INSTANTIATE_MATVEC_TILE(affine8_f16, kAffine + 8, kF16, 32)
INSTANTIATE_MATVEC_TILE(affine8_f32, kAffine + 8, kF32, 64)
INSTANTIATE_MATVEC_TILE(affine8_f32, kAffine + 8, kF32, 32)
