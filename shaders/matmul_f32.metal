// matmul_f32.metal: prefill rows by f32 matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(f32, kF32, kF32)
