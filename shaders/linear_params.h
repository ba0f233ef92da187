// linear_params.h: argument structs of the linear family, shared by shaders and dylib/gpu/lower_linear.cpp.
#ifndef MARKBASE_LINEAR_PARAMS_H
#define MARKBASE_LINEAR_PARAMS_H

enum : uint32_t { kCodeExponent = 150u << 23 };  // of 2^23, see code_at() in weights.h

// The prologue: h = (residual + rms_norm(x, post_norm)) · scalar, u = rms_norm(h, pre_norm). Formats are those of plan.h.
struct StreamParams {
  uint32_t k;                                       // columns of x, residual, h and u
  uint32_t has_residual, has_post, has_scalar, has_pre;
  uint32_t stores_h;
  uint32_t post_format, scalar_format, pre_format;
  float eps;
};

// linear_prologue_*: one threadgroup makes u of one row.
struct PrologueParams {
  struct StreamParams stream;
  uint32_t columns;      // of a row of u, padded with zeros
  uint32_t row_floats;   // decode: distance of rows of u, chunk sums included
  uint32_t chunk_shift;  // decode: log2 of the columns of a lane's chunk, see weights.h
  uint32_t code_bits;    // decode: of affine codes that are multiplied as they lie, see weights.h; 0: of none
};

// What happens to the products, numbered as Epilogue in plan.h.
struct EpilogueParams {
  uint32_t kind;
  uint32_t y_stride;                    // columns of y
  uint32_t y_column0, y_column1, y_column2;  // where each matrix's outputs begin in a row of y
  uint32_t other_stride, other_column;  // gelu_mul
  uint32_t has_bias0, has_bias1, has_bias2;
  uint32_t bias_format0, bias_format1, bias_format2;
  float cap;
};

// matvec_*: decode rows.
struct MatvecParams {
  struct StreamParams stream;
  struct EpilogueParams epilogue;
  uint32_t n0, n1, n2;           // rows of each matrix, 0 where absent
  uint32_t groups0, groups01;    // row groups of the first matrix, and of the first two
  uint32_t groups;               // of all
  uint32_t row_bytes;            // of a matrix
  uint32_t chunks, blocks;       // of a matrix row: chunks of a lane, blocks of 16 chunks
  uint32_t whole;                // every chunk is whole and aligned
  uint32_t scale_columns;        // scales in a matrix row
  uint32_t group_shift;          // log2 of the columns that share a scale
  uint32_t code_exponent;        // kCodeExponent
  uint32_t slices, slice_shift;  // simdgroups that share a row group: 1, 2, 4 or 8; its log2
  uint32_t iterations;           // row groups that a simdgroup does one after another,
  uint32_t group_stride;         // this far apart,
  uint32_t threadgroups;         // and this far from those of the simdgroups beside it
  uint32_t phase_blocks;         // one-row variant: blocks of u staged at once; a part of all only in steps of whole D · slices
  uint32_t rows;                 // activation rows
  uint32_t row_floats;           // distance of rows of u in scratch
};

// Columns of a row that kernels hold in registers while they make u of it.
enum : uint32_t {
  kHeldQuads = 3,               // quads of a thread of matvec_one, linear_prologue_chunked or linear_prologue_f16_held,
  kHeldColumns = 3072,          // columns of its threadgroup,
  kWideColumns = 6144,          // of a wide one
  kTileHeldColumns = 6144,      // one of tiles: of one row,
  kTileOwnColumns = 2560,       // or of each of kTileOwnRows
  kShortPlainColumns = 4096,    // linear_prologue_f16_plain4
  kLongPlainColumns = 12288     // linear_prologue_f16_plain12
};

// matvec_tile_*: decode rows on matrix units.
enum : uint32_t { kTileOwnRows = 4 };  // the most rows whose prologue the product makes itself
struct MatvecTileParams {
  struct StreamParams stream;
  struct EpilogueParams epilogue;
  uint32_t n0, n1, n2;           // as above
  uint32_t sets0, sets01;        // sets of rows of the first matrix, and of the first two
  uint32_t sets;                 // of all
  uint32_t row_bytes;
  uint32_t scale_columns;
  uint32_t scale_shift;          // log2 of the spans that share a scale
  uint32_t spans;                // of a matrix row
  uint32_t each_sets, more_sets; // sets of a threadgroup; this many threadgroups have one more
  float span_share;              // 1 / spans, and 1 / the spans of a threadgroup with each_sets or one more
  float each_share, more_share;
  uint32_t staged;               // ready-made u is copied to threadgroup memory
  uint32_t rows;                 // activation rows
};

// linear_prologue_tile: one threadgroup makes u of one row.
struct TilePrologueParams {
  struct StreamParams stream;
  uint32_t bits, span;           // of codes, and columns of a span
  uint32_t slots;                // rows that are staged together: 8 or 16
  uint32_t rows;
};

// matmul_*: prefill rows.
// matmul_tile.h: a walk along K.
struct TileParams {
  uint32_t k, steps;             // columns of a matrix row, and tile steps that they take
  uint32_t whole;                // as above, for parts of a step
  uint32_t group_shift, code_exponent;
};

struct MatmulParams {
  struct EpilogueParams epilogue;
  struct TileParams tile;
  uint32_t n0, n1, n2;
  uint32_t tiles0, tiles01;      // column tiles of the first matrix, and of the first two
  uint32_t rows;
  uint32_t columns;              // of u: those of W, padded to whole steps
  uint32_t row_bytes, scale_columns;
};

#endif
