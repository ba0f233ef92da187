// matvec_q2_k.metal: decode rows by q2_k matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(q2_k, kFine + kAffine + 2, kMinimums)
