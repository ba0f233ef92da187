// attention_decode_q8_d256.metal: decode attention with heads of 256 on pages of codes.
#include "attention_spread.h"

ATTENTION_DECODE(q8, char, 256)
ATTENTION_SPLIT(q8, char, 256, 1)
ATTENTION_SPLIT(q8, char, 256, 2)
ATTENTION_SPLIT(q8, char, 256, 4)
ATTENTION_SPREAD(q8, char, 256, 1)
ATTENTION_SPREAD(q8, char, 256, 2)
ATTENTION_SPREAD_SPLIT(q8, char, 256, 1)
ATTENTION_SPREAD_SPLIT(q8, char, 256, 2)
ATTENTION_SPREAD_SPLIT(q8, char, 256, 4)
