// attention_decode_d64.metal: decode attention with heads of 64.
#include "attention_decode.h"

ATTENTION_DECODE(f32, float, 64)
ATTENTION_SPLIT(f32, float, 64, 1)
ATTENTION_SPLIT(f32, float, 64, 2)
ATTENTION_SPLIT(f32, float, 64, 4)
ATTENTION_DECODE(f16, half, 64)
ATTENTION_SPLIT(f16, half, 64, 1)
ATTENTION_SPLIT(f16, half, 64, 2)
ATTENTION_SPLIT(f16, half, 64, 4)
