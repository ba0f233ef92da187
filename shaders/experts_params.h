// experts_params.h: argument structs of the kernels of routed experts, shared by shaders and dylib/gpu/lower_experts.cpp.
// A pair is a row and one of its slots: pair q is slot q % slots of row q / slots.
#ifndef MARKBASE_EXPERTS_PARAMS_H
#define MARKBASE_EXPERTS_PARAMS_H
#include "row_products_params.h"

// Where the matrices of an expert lie in a tensor [experts, height, k].
struct ExpertParams {
  uint32_t experts;         // an id from here on stands for an expert whose products are zero
  uint32_t slots;
  uint32_t height;          // rows of an expert
  uint32_t first0, first1;  // first row of each matrix within them
  uint32_t shared_by;       // pairs that follow each other and have the same row of u
};

// expert_matvec and expert_down: decode rows.
struct ExpertMatvecParams {
  struct RowParams row;
  struct EpilogueParams epilogue;
  struct ExpertParams expert;
  uint32_t n;               // outputs of a pair
  uint32_t slices;          // expert_matvec: simdgroups that share a row group: 1 or 2
};

enum : uint32_t {
  kExpertRows = 3,          // matrix rows of half a simdgroup of the kernels of experts_decode.h
  kExpertSlots = 32         // the most of a row there: lanes hold their ids
};

// expert_gated: decode rows, gate and up of one format.
struct ExpertGatedParams {
  struct RowParams row;
  struct ExpertParams expert;
  uint32_t n;               // outputs of a slot
  uint32_t has_norm, norm_format;
  float eps;
  uint32_t slot_groups;     // row groups of a slot
  uint32_t groups;          // of all slots
  uint32_t iterations;      // row groups that a simdgroup does one after another,
  uint32_t group_stride;    // this far apart,
  uint32_t threadgroups;    // of a row, and this far from those of the simdgroups beside it
};

// expert_summed: decode rows, the sum of all slots.
struct ExpertSummedParams {
  struct RowParams row;     // of a slot
  struct ExpertParams expert;
  uint32_t n;
  uint32_t chunks, blocks;  // of all slots
  float chunks_share;       // 1 / chunks of a slot
  uint32_t ids_ready;       // the kernel before started after the ids had been written, and lets this one start after that
  uint32_t slices, slice_shift;  // simdgroups that share a row group: 1, 2, 4 or 8; its log2
  uint32_t groups, iterations, group_stride, threadgroups;
};

// expert_matmul: prefill rows, their pairs ordered by expert.
struct ExpertMatmulParams {
  struct MatmulParams matmul;
  struct ExpertParams expert;
};

// expert_order: pairs in the order of their experts.
struct ExpertOrderParams {
  uint32_t pairs, experts;
};

struct ExpertSumParams {
  uint32_t width, slots;
};

struct AddNormsParams {
  uint32_t width;
  uint32_t a_format, b_format;  // of the norms
  float eps;
};

// best and best_few: the K best of each row of logits.
enum : uint32_t { kFewLogits = 256, kFewSlots = 32 };  // the most of best_few
struct BestParams {
  uint32_t rows, count, slots;
  uint32_t has_shares, scale_format;
  float factor;             // of the logits, positive
};

#endif
