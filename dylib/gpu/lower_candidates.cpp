// lower_candidates.cpp: the best 256 tokens of a row, in two dispatches for any vocabulary of the Gemma family.
#include "lower.h"

#include <algorithm>

#include "../../shaders/candidates_params.h"

namespace mb::gpu {
namespace {

// Lists of 256 entries and four sums for every row.
struct Lists {
  uint32_t rows, count;
  uint64_t entries, sums;  // offsets in scratch

  uint64_t entry_bytes() const { return uint64_t{rows} * count * kListEntries * 8; }
  uint64_t sum_bytes() const { return uint64_t{rows} * count * 16; }
};

Lists make_lists(Emitter &e, uint32_t rows, uint32_t count) {
  Lists lists{rows, count, 0, 0};
  lists.entries = e.scratch(lists.entry_bytes());
  lists.sums = e.scratch(lists.sum_bytes());
  return lists;
}

// Rows of one round: a bound on scratch, for prefill with many output rows.
constexpr uint32_t kRoundRows = 64;

void round(Emitter &e, const Op &op, uint32_t first, uint32_t rows) {
  const Tensor &logits = *op.operands[0];
  CandidatesParams p{};
  p.vocabulary = e.plan.vocabulary_size;
  p.first_row = first;
  p.groups = e.plan.group_count;
  p.lists = divide_up(p.vocabulary, kChunkLogits);
  Lists lists = make_lists(e, rows, p.lists);
  Launch chunk("candidates", "candidates_chunk");
  chunk.reads_rows(0, logits, first, rows)
      .reads_input(1)
      .writes_scratch(2, lists.entries, lists.entry_bytes())
      .writes_scratch(3, lists.sums, lists.sum_bytes())
      .params(4, p)
      .groups(p.lists, rows)
      .threads(kSelectThreads);
  e.emit(chunk);
  while (lists.count > kMergedLists) {
    p.lists = lists.count;
    p.merged = divide_up(lists.count, kMergedLists);
    const Lists merged = make_lists(e, rows, p.merged);
    Launch merge("candidates", "candidates_merge");
    merge.reads_scratch(0, lists.entries, lists.entry_bytes())
        .reads_scratch(1, lists.sums, lists.sum_bytes())
        .reads_input(2)
        .writes_scratch(3, merged.entries, merged.entry_bytes())
        .writes_scratch(4, merged.sums, merged.sum_bytes())
        .params(5, p)
        .groups(p.merged, rows)
        .threads(kSelectThreads);
    e.emit(merge);
    lists = merged;
  }
  p.lists = lists.count;
  Launch finish("candidates", "candidates_finish");
  finish.reads_scratch(0, lists.entries, lists.entry_bytes())
      .reads_scratch(1, lists.sums, lists.sum_bytes())
      .reads_input(2)
      .writes_rows(3, *op.operands[1], first, rows)
      .writes_rows(4, *op.operands[2], first, rows)
      .writes_rows(5, *op.operands[3], first, rows)
      .params(6, p)
      .groups(rows)
      .threads(kSelectThreads);
  e.emit(finish);
}

}  // namespace

void lower_candidates(Emitter &e, const Op &op) {
  const uint32_t rows = e.rows_of(*op.operands[0]).count;
  for (uint32_t first = 0; first < rows; first += kRoundRows) {
    e.begin(e.op());  // each round may use the scratch bytes of the one before
    round(e, op, first, std::min(kRoundRows, rows - first));
  }
}

}  // namespace mb::gpu
