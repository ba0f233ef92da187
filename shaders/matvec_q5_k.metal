// matvec_q5_k.metal: decode rows by q5_k matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(q5_k, kAffine + 5, kMinimums)
