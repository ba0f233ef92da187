// attention_prefill_q8_d128.metal: prefill attention with heads of 128 on pages of codes.
#include "attention_prefill.h"

ATTENTION_PREFILL(exact, float, q8, char, 128)
ATTENTION_PREFILL(fast, half, q8, char, 128)
