// input_block.h: reading the run's input block in kernels. dylib/input.h has the layout; all offsets follow from the header,
// so that a captured command graph replays with another block. `input` is kInputBuffer as 32-bit words.
#ifndef MARKBASE_INPUT_BLOCK_H
#define MARKBASE_INPUT_BLOCK_H
#include <metal_stdlib>
using namespace metal;

constant constexpr uint kInputHeaderWords = 16;
constant constexpr uint kNoPage = 0xffffffffu;
constant constexpr uint kTokensPerPage = 32;

static inline uint input_rows(device const uint* input) { return input[2]; }
static inline uint input_out_rows(device const uint* input) { return input[3]; }
static inline uint input_sequences(device const uint* input) { return input[4]; }
static inline uint input_table_entries(device const uint* input) { return input[5]; }
static inline uint input_adjustments(device const uint* input) { return input[7]; }
static inline uint input_masks(device const uint* input) { return input[8]; }

// u32 token[rows]
static inline device const uint* input_token(device const uint* input) { return input + kInputHeaderWords; }
// u32 position[rows]
static inline device const uint* input_position(device const uint* input) {
  return input + kInputHeaderWords + input_rows(input);
}
// u32 sequence[rows]
static inline device const uint* input_sequence(device const uint* input) {
  return input + kInputHeaderWords + 2 * input_rows(input);
}
// u32 out_row[out_rows]
static inline device const uint* input_out_row(device const uint* input) {
  return input + kInputHeaderWords + 4 * input_rows(input);
}

// For page group g: u32 start[sequences], u32 first[sequences], u32 count[sequences].
static inline device const uint* input_page_group(device const uint* input, uint g) {
  return input_out_row(input) + input_out_rows(input) + 3 * g * input_sequences(input);
}
// u32 table[table_entries], of all groups; `groups` is the plan's group count.
static inline device const uint* input_table(device const uint* input, uint groups) {
  return input_page_group(input, groups);
}
// Page id that holds `position` of `sequence` in group g, or kNoPage.
static inline uint input_page(device const uint* input, uint groups, uint g, uint sequence, uint position) {
  const uint sequences = input_sequences(input);
  device const uint* group = input_page_group(input, g);
  const uint first = group[sequences + sequence];
  const uint page = position / kTokensPerPage;
  if (page < first || page - first >= group[2 * sequences + sequence]) {
    return kNoPage;
  }
  return input_table(input, groups)[group[sequence] + page - first];
}

// u32 adjustment_start[out_rows + 1], then id, multiply and add [adjustments], temperature and mask_of [out_rows], masks.
static inline device const uint* input_adjustment_start(device const uint* input, uint groups) {
  return input_table(input, groups) + input_table_entries(input);
}
static inline device const uint* input_adjustment_id(device const uint* input, uint groups) {
  return input_adjustment_start(input, groups) + input_out_rows(input) + 1;
}
static inline device const float* input_adjustment_multiply(device const uint* input, uint groups) {
  return (device const float*)(input_adjustment_id(input, groups) + input_adjustments(input));
}
static inline device const float* input_adjustment_add(device const uint* input, uint groups) {
  return input_adjustment_multiply(input, groups) + input_adjustments(input);
}
static inline device const float* input_temperature(device const uint* input, uint groups) {
  return input_adjustment_add(input, groups) + input_adjustments(input);
}
static inline device const uint* input_mask_of(device const uint* input, uint groups) {
  return (device const uint*)(input_temperature(input, groups) + input_out_rows(input));
}
// u32 mask[masks · ceil(vocabulary / 32)]
static inline device const uint* input_mask(device const uint* input, uint groups) {
  return input_mask_of(input, groups) + input_out_rows(input);
}

// What follows the masks: u32 soft_row[rows] with kSoftRows, then u32 block_first[rows] and block_last[rows] with kBlocks.
// `mask_words` is the length of one mask.
static inline bool input_has_soft(device const uint* input) { return (input[9] & 1) != 0; }
static inline bool input_has_blocks(device const uint* input) { return (input[9] & 2) != 0; }
static inline device const uint* input_soft_row(device const uint* input, uint groups, uint mask_words) {
  return input_mask(input, groups) + input_masks(input) * mask_words;
}
static inline device const uint* input_block_first(device const uint* input, uint groups, uint mask_words) {
  return input_soft_row(input, groups, mask_words) + (input_has_soft(input) ? input_rows(input) : 0);
}

#endif
