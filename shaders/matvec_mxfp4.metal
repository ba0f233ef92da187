// matvec_mxfp4.metal: decode rows by mxfp4 matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(mxfp4, kE2m1, kPowers)
