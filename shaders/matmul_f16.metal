// matmul_f16.metal: prefill rows by f16 matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(f16, kF16, kF16)
