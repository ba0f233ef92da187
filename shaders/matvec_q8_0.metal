// matvec_q8_0.metal: decode rows by q8_0 matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(q8_0, kAffine + 8, kSymmetric)
