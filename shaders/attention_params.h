// attention_params.h: arguments of the attention kernels and of kv_write, for the shaders and for dylib/gpu.
#ifndef MARKBASE_ATTENTION_PARAMS_H
#define MARKBASE_ATTENTION_PARAMS_H

enum AttentionParamFlags : uint32_t {
  kOwnKey = 1,         // the row's own k and v come from qkv; otherwise its pages hold them already
  kStoreOwnKey = 2,    // and this dispatch writes them to the pages
  kNormaliseValue = 4, // v is normalised without weight
  kKeysAreThere = 8    // keys before the row's own were written by earlier runs
};

enum BlockRule : uint32_t { kCausalRows = 0, kWindowOfBlock = 1, kWholeBlock = 2 };

enum : uint32_t {
  kNoNorm = 0xff,       // in place of a norm's format: the vector stays as it is
  kRatios = 8,          // bits of a pair's number: heads have at most 256 pairs
  kBlockTokens = 256,   // keys of the smallest part of a context that decode attention splits off
  kMostSplits = 64,     // parts of one row's context
  kReduceThreads = 128  // of a threadgroup of attention_reduce: a dimension each
};

// Keys that a simdgroup of attention_spread takes at once.
#define GROUP_KEYS(D) ((D) == 512 ? 4 : 8)

// Dimensions of a value that one threadgroup of decode attention adds up; the other slices are other threadgroups.
#define VALUE_SLICE(D) ((D) == 512 ? 256 : (D) == 256 ? 128 : (D))

struct AttentionParams {
  uint32_t heads, kv_heads;
  uint32_t stride;              // floats from one row of q, k or v to the next
  uint32_t k_column, v_column;  // where k and v begin in a row; the same where v is the raw k
  uint32_t first_row, rows;     // rows of the op that the dispatch covers; bindings begin at the first
  uint32_t gathered;            // 1: rows of the op are output rows
  uint32_t group, groups;       // page group of the op, page groups of the plan
  uint32_t plane, planes;       // K's plane in a page (V's is the next), planes of a page
  uint32_t sequences;           // of the input block
  // Where these arrays begin in the input block, in words. The counts that this follows from are those of the run's Shape;
  // a kernel that took them from the block would wait for memory once more before its first key.
  uint32_t position_word, sequence_word, out_row_word, pages_word, table_word;
  uint32_t window;              // tokens, 0: all
  uint32_t flags;               // AttentionParamFlags
  uint32_t q_norm, k_norm;      // formats of the weights, or kNoNorm
  uint32_t splits;              // parts that the longest row of the dispatch has
  uint32_t ring;                // attention_spread: places of a window's keys, each of which has one, a power of two; 0: keys go in parts
  uint32_t rotated_pairs;
  uint32_t position_offset;     // added to positions by the rotation alone
  uint32_t block_rule;          // BlockRule: what prefill rows of a block see
  uint32_t mask_words;          // of a vocabulary mask in the input block
  float eps;
  float score_scale;            // positive, times log2(e)
  // Pair i turns by position · turns · ratio^i: turns per position of pair 0 and ratio^(2^j), in units of 2^-64, so that the
  // angle is exact at any position.
  uint32_t turns_high, turns_low;
  uint32_t ratio_high[kRatios], ratio_low[kRatios];
};

// The second half of split attention.
struct AttentionReduceParams {
  uint32_t heads, head_dim;
  uint32_t first_row, gathered, window, splits;
  uint32_t position_word, out_row_word;
  uint32_t least;  // of attention_spread: keys that its simdgroups take at once; 0: parts are of attention_split
  float score_scale;
};

#endif
