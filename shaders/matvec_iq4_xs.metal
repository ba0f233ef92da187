// matvec_iq4_xs.metal: decode rows by iq4_xs matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(iq4_xs, kIq4, kSigned)
