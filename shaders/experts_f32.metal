// experts_f32.metal: products with the weights of chosen experts, stored as f32.
#include "experts.h"

INSTANTIATE_EXPERTS(f32, kF32, kF32)
