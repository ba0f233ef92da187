// attention_decode_q8_d512.metal: decode attention with heads of 512 on pages of codes.
#include "attention_spread.h"

ATTENTION_DECODE(q8, char, 512)
ATTENTION_SPLIT(q8, char, 512, 1)
ATTENTION_SPLIT(q8, char, 512, 2)
ATTENTION_SPLIT(q8, char, 512, 4)
ATTENTION_SPREAD(q8, char, 512, 1)
ATTENTION_SPREAD(q8, char, 512, 2)
ATTENTION_SPREAD_SPLIT(q8, char, 512, 1)
ATTENTION_SPREAD_SPLIT(q8, char, 512, 2)
ATTENTION_SPREAD_SPLIT(q8, char, 512, 4)
