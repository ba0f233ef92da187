// attention_prefill_q8_d64.metal: prefill attention with heads of 64 on pages of codes.
#include "attention_prefill.h"

ATTENTION_PREFILL(exact, float, q8, char, 64)
ATTENTION_PREFILL(fast, half, q8, char, 64)
