// attention_prefill_d256.metal: prefill attention with heads of 256.
#include "attention_prefill.h"

ATTENTION_PREFILL(exact, float, f32, float, 256)
ATTENTION_PREFILL(fast, half, f32, float, 256)
ATTENTION_PREFILL(exact, float, f16, half, 256)
ATTENTION_PREFILL(fast, half, f16, half, 256)
