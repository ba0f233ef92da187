// matmul_nvfp4.metal: prefill rows by nvfp4 matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(nvfp4, kFine + kE2m1, kBytes)
