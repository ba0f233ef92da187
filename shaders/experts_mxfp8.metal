// experts_mxfp8.metal: products with the weights of chosen experts, stored as mxfp8.
#include "experts.h"

INSTANTIATE_EXPERTS(mxfp8, kE4m3, kPowers)
