// attention_prefill_d32.metal: prefill attention with heads of 32.
#include "attention_prefill.h"

ATTENTION_PREFILL(exact, float, f32, float, 32)
ATTENTION_PREFILL(fast, half, f32, float, 32)
ATTENTION_PREFILL(exact, float, f16, half, 32)
ATTENTION_PREFILL(fast, half, f16, half, 32)
