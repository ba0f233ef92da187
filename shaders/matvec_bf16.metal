// matvec_bf16.metal: decode rows by bf16 matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(bf16, kBF16, kBF16)
