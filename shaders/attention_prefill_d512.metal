// attention_prefill_d512.metal: prefill attention with heads of 512.
#include "attention_prefill.h"

ATTENTION_PREFILL(exact, float, f32, float, 512)
ATTENTION_PREFILL(fast, half, f32, float, 512)
ATTENTION_PREFILL(exact, float, f16, half, 512)
ATTENTION_PREFILL(fast, half, f16, half, 512)
