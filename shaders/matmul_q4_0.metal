// matmul_q4_0.metal: prefill rows by q4_0 matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(q4_0, kAffine + 4, kSymmetric)
