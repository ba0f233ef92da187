// clip_params.h: arguments of the prologue of a clipped linear, shared with dylib/gpu/lower_linear.cpp.
#ifndef MARKBASE_CLIP_PARAMS_H
#define MARKBASE_CLIP_PARAMS_H
#include "linear_params.h"

struct ClipPrologueParams {
  struct StreamParams stream;
  uint32_t columns;      // of a row of u, padded with zeros
  float least, largest;  // of u
};

#endif
