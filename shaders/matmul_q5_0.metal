// matmul_q5_0.metal: prefill rows by q5_0 matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(q5_0, kAffine + 5, kSymmetric)
