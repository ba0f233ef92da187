// matmul_mxfp8.metal: prefill rows by mxfp8 matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(mxfp8, kE4m3, kPowers)
