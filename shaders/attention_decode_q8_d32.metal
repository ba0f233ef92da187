// attention_decode_q8_d32.metal: decode attention with heads of 32 on pages of codes.
#include "attention_spread.h"

ATTENTION_DECODE(q8, char, 32)
ATTENTION_SPLIT(q8, char, 32, 1)
ATTENTION_SPLIT(q8, char, 32, 2)
ATTENTION_SPLIT(q8, char, 32, 4)
ATTENTION_SPREAD(q8, char, 32, 1)
ATTENTION_SPREAD(q8, char, 32, 2)
ATTENTION_SPREAD_SPLIT(q8, char, 32, 1)
ATTENTION_SPREAD_SPLIT(q8, char, 32, 2)
ATTENTION_SPREAD_SPLIT(q8, char, 32, 4)
