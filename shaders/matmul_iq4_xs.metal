// matmul_iq4_xs.metal: prefill rows by iq4_xs matrices.
#include "matmul.h"

INSTANTIATE_MATMUL(iq4_xs, kIq4, kSigned)
