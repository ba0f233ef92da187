// matvec_q4_0.metal: decode rows by q4_0 matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(q4_0, kAffine + 4, kSymmetric)
