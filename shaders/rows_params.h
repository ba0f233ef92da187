// rows_params.h: argument structs of embed, per_layer_inputs, draft_input and gather, shared by shaders and dylib/gpu/lower_rows.cpp.
#ifndef MARKBASE_ROWS_PARAMS_H
#define MARKBASE_ROWS_PARAMS_H

struct TableParams {
  uint32_t width;          // columns of the table and of y
  uint32_t row_bytes;      // of a table row
  uint32_t scale_columns;  // scales in a table row
  uint32_t group_shift;    // log2 of the columns that share a scale
};

struct EmbedParams {
  struct TableParams table;
  float scale;
  uint32_t has_soft;       // soft tokens may replace embeddings
  uint32_t groups;         // page groups of the plan
  uint32_t mask_words;     // of a vocabulary mask in the input block
};

struct DraftInputParams {
  struct TableParams table;
  uint32_t gathered;       // rows are output rows
  float scale;
};

struct PerLayerInputsParams {
  struct TableParams table;
  uint32_t slice;          // P
  uint32_t norm_format;
  float eps, projection_scale, table_scale, out_scale;
};

struct GatherParams {
  uint32_t width;
};

#endif
