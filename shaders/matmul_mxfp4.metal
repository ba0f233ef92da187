// matmul_mxfp4.metal: prefill rows by mxfp4 matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(mxfp4, kE2m1, kPowers)
