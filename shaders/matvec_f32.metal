// matvec_f32.metal: decode rows by f32 matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(f32, kF32, kF32)
