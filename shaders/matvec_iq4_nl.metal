// matvec_iq4_nl.metal: decode rows by iq4_nl matrices.
#include "matvec.h"

INSTANTIATE_MATVEC(iq4_nl, kIq4, kSymmetric)
