// matmul_q3_k.metal: prefill rows by q3_k matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(q3_k, kFine + kAffine + 3, kSigned)
