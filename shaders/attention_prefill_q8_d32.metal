// attention_prefill_q8_d32.metal: prefill attention with heads of 32 on pages of codes.
#include "attention_prefill.h"

ATTENTION_PREFILL(exact, float, q8, char, 32)
ATTENTION_PREFILL(fast, half, q8, char, 32)
