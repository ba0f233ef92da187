// matvec_tile_q4_0.metal: decode rows by q4_0 matrices on matrix units.
#include "matvec_tile.h"

INSTANTIATE_MATVEC_TILE(q4_0, kAffine + 4, kSymmetric, 32)
