// matmul_bf16.metal: prefill rows by bf16 matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(bf16, kBF16, kBF16)
