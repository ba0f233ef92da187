// input.h: the input block of one run, written by src/engine/input.ts.
//
// Little-endian 32-bit words: header, then the arrays below in this order, each as long as its comment says,
// nothing between them. The block is untrusted: check_input() verifies counts, tokens, positions, pages and slots.
#pragma once
#include <cstdint>

namespace mb {

constexpr uint32_t kInputMagic = 0x4e49424d;  // "MBIN"
constexpr uint32_t kInputVersion = 1;
constexpr uint32_t kNoPage = 0xffffffff;

struct InputHeader {  // 64 bytes
  uint32_t magic, version;
  uint32_t rows, out_rows, sequences;
  uint32_t table_entries;  // of all groups and sequences together
  uint32_t output_mask;    // bit i: copy out output i of the plan
  uint32_t adjustments;    // sparse logit adjustments of all out rows together
  uint32_t masks;          // vocabulary bit masks
  uint32_t extras;         // InputExtras: which of the last arrays are there
  uint32_t reserved[6];
};
constexpr uint64_t kInputHeaderWords = sizeof(InputHeader) / 4;

enum InputExtras : uint32_t { kSoftRows = 1u << 0, kBlocks = 1u << 1 };

// u32 token[rows]            below the plan's vocabulary size
// u32 position[rows]         absolute position in the sequence
// u32 sequence[rows]         index below `sequences`
// u32 row_class[rows]        0 prefill, 1 decode (a kernel variant is chosen by class, never by the number of rows)
// u32 out_row[out_rows]      index below `rows`, strictly ascending
// for each page group g of the plan:
//   u32 table_start[sequences]  where the sequence's entries begin in table
//   u32 table_first[sequences]  page index (position / 32) of its first entry
//   u32 table_count[sequences]  number of entries
// u32 table[table_entries]   page ids, kNoPage where the sequence holds none
// u32 adjustment_start[out_rows + 1]   ascending from 0 to `adjustments`
// u32 adjustment_id[adjustments]       token ids, ascending within a row
// f32 adjustment_multiply[adjustments] > 0 and finite; logit' = (logit > 0 ? logit * m : logit / m) + add, so that
// f32 adjustment_add[adjustments]      m = 1 / penalty is the usual repetition penalty whatever the sign
// f32 temperature[out_rows]  > 0; used for the second log-sum-exp only
// u32 mask_of[out_rows]      index of the row's mask or kNoPage
// u32 mask[masks * ceil(vocabulary / 32)]   bit set: token allowed
// with kSoftRows, for plans whose embed takes soft tokens:
//   u32 soft_row[rows]       row of the soft tokens that replaces the embedding, or kNoPage
// with kBlocks, for plans with an attention that knows blocks:
//   u32 block_first[rows]    first and last position of the row's image or video block, both its own position outside of
//   u32 block_last[rows]     one. Blocks are of class prefill; all rows of a block are in the run, in order

}  // namespace mb
