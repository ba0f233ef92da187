// matmul_q6_k.metal: prefill rows by q6_k matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(q6_k, kFine + kAffine + 6, kSigned)
