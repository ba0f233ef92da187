// experts_nvfp4.metal: products with the weights of chosen experts, stored as nvfp4.
#include "experts.h"

INSTANTIATE_EXPERTS(nvfp4, kFine + kE2m1, kBytes)
