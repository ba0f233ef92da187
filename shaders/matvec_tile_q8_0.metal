// matvec_tile_q8_0.metal: decode rows by q8_0 matrices on matrix units.
#include "matvec_tile.h"

INSTANTIATE_MATVEC_TILE(q8_0, kAffine + 8, kSymmetric, 32)
