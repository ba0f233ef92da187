// matmul_q4_k.metal: prefill rows by q4_k matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(q4_k, kAffine + 4, kMinimums)
