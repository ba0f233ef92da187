// attention_decode_d128.metal: decode attention with heads of 128.
#include "attention_decode.h"

ATTENTION_DECODE(f32, float, 128)
ATTENTION_SPLIT(f32, float, 128, 1)
ATTENTION_SPLIT(f32, float, 128, 2)
ATTENTION_SPLIT(f32, float, 128, 4)
ATTENTION_DECODE(f16, half, 128)
ATTENTION_SPLIT(f16, half, 128, 1)
ATTENTION_SPLIT(f16, half, 128, 2)
ATTENTION_SPLIT(f16, half, 128, 4)
