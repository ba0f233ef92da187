// attention_decode_d32.metal: decode attention with heads of 32.
#include "attention_decode.h"

ATTENTION_DECODE(f32, float, 32)
ATTENTION_SPLIT(f32, float, 32, 1)
ATTENTION_SPLIT(f32, float, 32, 2)
ATTENTION_SPLIT(f32, float, 32, 4)
ATTENTION_DECODE(f16, half, 32)
ATTENTION_SPLIT(f16, half, 32, 1)
ATTENTION_SPLIT(f16, half, 32, 2)
ATTENTION_SPLIT(f16, half, 32, 4)
