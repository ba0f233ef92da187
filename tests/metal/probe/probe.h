// probe.h: includes what a family's header would, so that flattening is seen to work.
#pragma once
#include <metal_stdlib>
#include "probe_params.h"
using namespace metal;
