// attention_prefill_q8_d256.metal: prefill attention with heads of 256 on pages of codes.
#include "attention_prefill.h"

ATTENTION_PREFILL(exact, float, q8, char, 256)
ATTENTION_PREFILL(fast, half, q8, char, 256)
