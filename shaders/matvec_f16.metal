// matvec_f16.metal: decode rows by f16 matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(f16, kF16, kF16)
