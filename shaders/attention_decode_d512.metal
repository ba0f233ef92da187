// attention_decode_d512.metal: decode attention with heads of 512.
#include "attention_decode.h"

ATTENTION_DECODE(f32, float, 512)
ATTENTION_SPLIT(f32, float, 512, 1)
ATTENTION_SPLIT(f32, float, 512, 2)
ATTENTION_DECODE(f16, half, 512)
ATTENTION_SPLIT(f16, half, 512, 1)
ATTENTION_SPLIT(f16, half, 512, 2)
ATTENTION_SPLIT(f16, half, 512, 4)
