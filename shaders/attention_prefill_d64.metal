// attention_prefill_d64.metal: prefill attention with heads of 64.
#include "attention_prefill.h"

ATTENTION_PREFILL(exact, float, f32, float, 64)
ATTENTION_PREFILL(fast, half, f32, float, 64)
ATTENTION_PREFILL(exact, float, f16, half, 64)
ATTENTION_PREFILL(fast, half, f16, half, 64)
