// matmul_q5_k.metal: prefill rows by q5_k matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(q5_k, kAffine + 5, kMinimums)
