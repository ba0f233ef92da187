// attention_decode_q8_d128.metal: decode attention with heads of 128 on pages of codes.
#include "attention_spread.h"

ATTENTION_DECODE(q8, char, 128)
ATTENTION_SPLIT(q8, char, 128, 1)
ATTENTION_SPLIT(q8, char, 128, 2)
ATTENTION_SPLIT(q8, char, 128, 4)
ATTENTION_SPREAD(q8, char, 128, 1)
ATTENTION_SPREAD(q8, char, 128, 2)
ATTENTION_SPREAD_SPLIT(q8, char, 128, 1)
ATTENTION_SPREAD_SPLIT(q8, char, 128, 2)
ATTENTION_SPREAD_SPLIT(q8, char, 128, 4)
