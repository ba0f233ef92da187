// matvec_q6_k.metal: decode rows by q6_k matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(q6_k, kFine + kAffine + 6, kSigned)
