// tower_params.h: argument structs of the kernels of vision and audio towers, shared with dylib/gpu/lower_towers.cpp.
#ifndef MARKBASE_TOWER_PARAMS_H
#define MARKBASE_TOWER_PARAMS_H

struct AddPositionsParams {
  uint32_t width, table_format;
  uint32_t count, step, second;
};

struct PoolParams {
  uint32_t rows, width, members;  // rows of x; rows that one output adds up
  uint32_t has_bias, bias_format, has_scale, scale_format;
  float factor;
};

struct LayerNormParams {
  uint32_t width, weight_format, has_bias, bias_format;
  float eps;
};

struct SubsampleParams {
  uint32_t frames, bins, channels, outputs;  // frames of x
  uint32_t channels_last;
  uint32_t weight_format, norm_format;
  float eps;
};

struct LightConvParams {
  uint32_t width, taps, weight_format, norm_format;
  float eps;
};

struct DistanceParams {
  uint32_t columns;  // n of a distance's sines and cosines
  float first;       // position of the first distance; each that follows is 1 less
};

struct RelativeKeysParams {
  uint32_t width, columns, distances;
  uint32_t weight_format;
};

struct LocalAttentionParams {
  uint32_t rows, heads, head_dim;
  uint32_t left, reach;  // keys at and before a row, and all that it sees
  uint32_t scale_format;
  float query_scale, key_scale, cap;
};

struct PatchHeadsParams {
  uint32_t rows, heads, kv_heads, head_dim;
  uint32_t padded;  // numbers of a stored head
  uint32_t q_format, k_format;
  float theta_log2;  // log2(theta) · 4 / head_dim
  float eps;
};

struct PatchAttentionParams {
  uint32_t rows, heads, kv_heads, head_dim;
  float score_scale;  // times log2(e)
};

struct ClipFinishParams {
  uint32_t width, count;  // of a row; of all rows
  uint32_t clips;         // products are clamped
  float least, largest;
  uint32_t kind;          // as Epilogue in plan.h, without those of several matrices
  uint32_t other_stride, other_column;
};

#endif
