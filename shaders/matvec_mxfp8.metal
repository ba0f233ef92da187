// matvec_mxfp8.metal: decode rows by mxfp8 matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(mxfp8, kE4m3, kPowers)
