// attention_decode_q8_d64.metal: decode attention with heads of 64 on pages of codes.
#include "attention_spread.h"

ATTENTION_DECODE(q8, char, 64)
ATTENTION_SPLIT(q8, char, 64, 1)
ATTENTION_SPLIT(q8, char, 64, 2)
ATTENTION_SPLIT(q8, char, 64, 4)
ATTENTION_SPREAD(q8, char, 64, 1)
ATTENTION_SPREAD(q8, char, 64, 2)
ATTENTION_SPREAD_SPLIT(q8, char, 64, 1)
ATTENTION_SPREAD_SPLIT(q8, char, 64, 2)
ATTENTION_SPREAD_SPLIT(q8, char, 64, 4)
