// matvec_q3_k.metal: decode rows by q3_k matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(q3_k, kFine + kAffine + 3, kSigned)
