// attention_decode_d256.metal: decode attention with heads of 256.
#include "attention_decode.h"

ATTENTION_DECODE(f32, float, 256)
ATTENTION_SPLIT(f32, float, 256, 1)
ATTENTION_SPLIT(f32, float, 256, 2)
ATTENTION_SPLIT(f32, float, 256, 4)
ATTENTION_DECODE(f16, half, 256)
ATTENTION_SPLIT(f16, half, 256, 1)
ATTENTION_SPLIT(f16, half, 256, 2)
ATTENTION_SPLIT(f16, half, 256, 4)
