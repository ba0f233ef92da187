// matmul_iq4_nl.metal: prefill rows by iq4_nl matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(iq4_nl, kIq4, kSymmetric)
