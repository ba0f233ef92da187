// matmul_q2_k.metal: prefill rows by q2_k matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(q2_k, kFine + kAffine + 2, kMinimums)
