// experts_mxfp4.metal: products with the weights of chosen experts, stored as mxfp4.
#include "experts.h"

INSTANTIATE_EXPERTS(mxfp4, kE2m1, kPowers)
