// probe_params.h: the parameters of the probe's kernels.
#pragma once

struct ProbeParams {
  uint32_t count;    // elements
  uint32_t columns;  // of a row
  uint32_t zero;
};
