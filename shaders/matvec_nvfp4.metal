// matvec_nvfp4.metal: decode rows by nvfp4 matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(nvfp4, kFine + kE2m1, kBytes)
