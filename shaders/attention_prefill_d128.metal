// attention_prefill_d128.metal: prefill attention with heads of 128.
#include "attention_prefill.h"

ATTENTION_PREFILL(exact, float, f32, float, 128)
ATTENTION_PREFILL(fast, half, f32, float, 128)
ATTENTION_PREFILL(exact, float, f16, half, 128)
ATTENTION_PREFILL(fast, half, f16, half, 128)
