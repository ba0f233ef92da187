// matvec_q5_0.metal: decode rows by q5_0 matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(q5_0, kAffine + 5, kSymmetric)
