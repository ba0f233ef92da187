// matmul_q8_0.metal: prefill rows by q8_0 matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(q8_0, kAffine + 8, kSymmetric)
