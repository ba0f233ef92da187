// matvec_q4_k.metal: decode rows by q4_k matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(q4_k, kAffine + 4, kMinimums)
