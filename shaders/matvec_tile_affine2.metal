// matvec_tile_affine2.metal: decode rows by affine matrices of 2-bit codes on matrix units; scales bf16, f16 or f32.
#include "matvec_tile.h"

INSTANTIATE_MATVEC_TILE(affine2_bf16, kAffine + 2, kBF16, 64)
INSTANTIATE_MATVEC_TILE(affine2_f16, kAffine + 2, kF16, 64)
INSTANTIATE_MATVEC_TILE(affine2_f32, kAffine + 2, kF32, 64)
