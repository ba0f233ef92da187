// pointwise_params.h: argument structs of pointwise.metal, shared with dylib/gpu/lower_pointwise.cpp.
#ifndef MARKBASE_POINTWISE_PARAMS_H
#define MARKBASE_POINTWISE_PARAMS_H

struct RmsNormParams {
  uint32_t groups;  // of all rows together
  uint32_t group;   // columns of one
  uint32_t has_weight, weight_format;
  float eps, in_scale;
};

struct AddParams {
  uint32_t count;   // elements of all rows together
  uint32_t has_b, has_scalar, scalar_format;
  float a_scale, b_scale;
};

struct GeluMulParams {
  uint32_t width, b_width, column;
};

struct SoftcapParams {
  uint32_t count;
  float cap;
};

struct RopeParams {
  uint32_t heads, head_dim, rotated_pairs;
  uint32_t gathered;                         // rows are output rows
  uint32_t position_offset;                  // added to each row's position
  uint32_t turns_high[256], turns_low[256];  // of each pair, see dylib/gpu/turns.h
};

#endif
