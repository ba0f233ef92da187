// matvec_tile_q4_k.metal: decode rows by q4_k matrices on matrix units.
#include "matvec_tile.h"

INSTANTIATE_MATVEC_TILE(q4_k, kAffine + 4, kMinimums, 32)
