// attention_prefill_q8_d512.metal: prefill attention with heads of 512 on pages of codes.
#include "attention_prefill.h"

ATTENTION_PREFILL(exact, float, q8, char, 512)
ATTENTION_PREFILL(fast, half, q8, char, 512)
