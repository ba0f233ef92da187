// input.cpp: checks an input block and gives views into it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "device.h"

namespace mb {

namespace {

using ull = unsigned long long;

// Takes arrays of 32-bit words off the front of the block.
class Words {
 public:
  Words(const void *bytes, uint64_t count) : next_(static_cast<const uint32_t *>(bytes)), left_(count) {}

  template <class T = uint32_t>
  const T *take(uint64_t count) {
    static_assert(sizeof(T) == 4, "the block is made of 32-bit words");
    if (count > left_) fail(MB_INVALID_INPUT, "the input block ends inside its arrays");
    const uint32_t *words = next_;
    next_ += count;
    left_ -= count;
    return reinterpret_cast<const T *>(words);
  }

  uint64_t left() const { return left_; }

 private:
  const uint32_t *next_;
  uint64_t left_;
};

void check_count(const char *name, uint64_t count, uint64_t least, uint64_t most) {
  if (count < least || count > most) {
    fail(MB_INVALID_INPUT, "the input block has %llu %s; the plan allows %llu to %llu", ull(count), name, ull(least),
         ull(most));
  }
}

void check_header(const Plan &plan, const InputHeader &header) {
  if (header.magic != kInputMagic) {
    fail(MB_INVALID_INPUT, "these bytes are no input block: the magic is %08x", header.magic);
  }
  if (header.version != kInputVersion) {
    fail(MB_INVALID_INPUT, "the input block has version %u; this library reads %u", header.version, kInputVersion);
  }
  if ((header.extras & ~(kSoftRows | kBlocks)) != 0) {
    fail(MB_INVALID_INPUT, "the input block has unknown extras %08x", header.extras);
  }
  for (const uint32_t reserved : header.reserved) {
    if (reserved != 0) fail(MB_INVALID_INPUT, "a reserved field of the input block is %u instead of 0", reserved);
  }
  check_count("rows", header.rows, 1, plan.symbol_max[kRows]);
  check_count("output rows", header.out_rows, 0, std::min<uint64_t>(plan.symbol_max[kOutRows], header.rows));
  check_count("sequences", header.sequences, 1, plan.symbol_max[kSequences]);
  check_count("page table entries", header.table_entries, 0, plan.symbol_max[kPages]);
  check_count("masks", header.masks, 0, header.out_rows);
  if (plan.outputs.size() < 32 && (header.output_mask >> plan.outputs.size()) != 0) {
    fail(MB_INVALID_INPUT, "the output mask %08x selects outputs that the plan, with %zu, has not", header.output_mask,
         plan.outputs.size());
  }
}

void check_rows(const Plan &plan, const Input &input) {
  for (uint32_t r = 0; r < input.header.rows; r++) {
    if (input.token[r] >= plan.vocabulary_size) {
      fail(MB_INVALID_INPUT, "row %u: token %u is outside the vocabulary of %u", r, input.token[r],
           plan.vocabulary_size);
    }
    if (input.sequence[r] >= input.header.sequences) {
      fail(MB_INVALID_INPUT, "row %u: there is no sequence %u of %u", r, input.sequence[r], input.header.sequences);
    }
    if (input.row_class[r] > 1) fail(MB_INVALID_INPUT, "row %u: there is no class %u", r, input.row_class[r]);
  }
  for (uint32_t i = 0; i < input.header.out_rows; i++) {
    const bool ascending = i == 0 || input.out_row[i] > input.out_row[i - 1];
    if (input.out_row[i] >= input.header.rows || !ascending) {
      fail(MB_INVALID_INPUT, "output row %u names row %u of %u; they must ascend", i, input.out_row[i],
           input.header.rows);
    }
  }
}

// Soft tokens exist, and blocks are complete: a row within one has the rows before and after it as neighbours.
void check_extras(const Plan &plan, const Input &input) {
  uint64_t soft = 0;  // rows that every embed of the plan has
  bool takes_soft = false, takes_blocks = false;
  for (const Op &op : plan.ops) {
    if (op.kind == kEmbed && op.operands[2] != nullptr) {
      const auto rows = static_cast<uint64_t>(op.operands[2]->dims[0]);
      soft = takes_soft ? std::min(soft, rows) : rows;
      takes_soft = true;
    }
    if (op.kind == kAttention || op.kind == kAttend) {
      takes_blocks = takes_blocks || (op.flags & (kBlockWindow | kBlockWhole)) != 0;
    }
  }
  if (input.soft_row != nullptr && !takes_soft) fail(MB_INVALID_INPUT, "the plan takes no soft tokens");
  if (input.block_first != nullptr && !takes_blocks) fail(MB_INVALID_INPUT, "the plan knows no blocks");
  for (uint32_t r = 0; r < input.header.rows; r++) {
    if (input.soft_row != nullptr && input.soft_row[r] != kNoPage && input.soft_row[r] >= soft) {
      fail(MB_INVALID_INPUT, "row %u: there is no soft token %u of %llu", r, input.soft_row[r], ull(soft));
    }
    if (input.block_first == nullptr) continue;
    const uint32_t first = input.block_first[r], last = input.block_last[r], position = input.position[r];
    if (first > position || last < position) {
      fail(MB_INVALID_INPUT, "row %u: position %u lies outside its block of positions %u to %u", r, position, first, last);
    }
    if (first == last) continue;
    if (input.row_class[r] != 0) fail(MB_INVALID_INPUT, "row %u: a decode row has the block %u to %u", r, first, last);
    const auto neighbour = [&](uint64_t other, uint32_t expected) {
      return other < input.header.rows && input.sequence[other] == input.sequence[r] &&
             input.position[other] == expected && input.block_first[other] == first && input.block_last[other] == last;
    };
    if ((position > first && !neighbour(uint64_t(r) - 1, position - 1)) ||
        (position < last && !neighbour(uint64_t(r) + 1, position + 1))) {
      fail(MB_INVALID_INPUT, "row %u: its block of positions %u to %u is not whole in this run", r, first, last);
    }
  }
}

// Everything about logits: adjustments, temperatures, masks.
void check_logit_changes(const Plan &plan, const Input &input) {
  const InputHeader &header = input.header;
  for (uint32_t i = 0; i <= header.out_rows; i++) {
    const uint32_t before = i == 0 ? 0 : input.adjustment_start[i - 1], start = input.adjustment_start[i];
    if (start < before || (i == 0 && start != 0) || (i == header.out_rows && start != header.adjustments)) {
      fail(MB_INVALID_INPUT, "adjustment_start must ascend from 0 to %u but entry %u is %u", header.adjustments, i,
           start);
    }
  }
  for (uint32_t i = 0; i < header.out_rows; i++) {
    for (uint32_t a = input.adjustment_start[i]; a < input.adjustment_start[i + 1]; a++) {
      const uint32_t id = input.adjustment_id[a];
      if (id >= plan.vocabulary_size || (a > input.adjustment_start[i] && id <= input.adjustment_id[a - 1])) {
        fail(MB_INVALID_INPUT, "output row %u: adjustment of token %u; ids must ascend below %u", i, id,
             plan.vocabulary_size);
      }
      const float multiply = input.adjustment_multiply[a];
      if (!(multiply > 0) || !std::isfinite(multiply) || !std::isfinite(input.adjustment_add[a])) {
        fail(MB_INVALID_INPUT, "output row %u: adjustment of token %u by * %g + %g", i, id,
             static_cast<double>(multiply), static_cast<double>(input.adjustment_add[a]));
      }
    }
    const float temperature = input.temperature[i];
    if (!(temperature > 0) || !std::isfinite(temperature)) {
      fail(MB_INVALID_INPUT, "output row %u: temperature %g", i, static_cast<double>(temperature));
    }
    if (input.mask_of[i] != kNoPage && input.mask_of[i] >= header.masks) {
      fail(MB_INVALID_INPUT, "output row %u: there is no mask %u of %u", i, input.mask_of[i], header.masks);
    }
  }
  const uint32_t words = (plan.vocabulary_size + 31) / 32, tail = plan.vocabulary_size % 32;
  for (uint32_t m = 0; m < header.masks; m++) {
    const uint32_t *mask = input.mask + static_cast<uint64_t>(m) * words;
    bool any = (mask[words - 1] & (tail == 0 ? ~0u : (1u << tail) - 1)) != 0;
    for (uint32_t w = 0; w + 1 < words && !any; w++) any = mask[w] != 0;
    if (!any) fail(MB_INVALID_INPUT, "mask %u allows no token", m);
  }
}

// What a plan does with the pages of one group.
struct GroupUse {
  uint64_t pages = UINT64_MAX;  // in the smallest pool of the group
  bool used = false;
  // by row symbol, kRows and kOutRows:
  bool writes[2] = {false, false};
  bool reads[2] = {false, false};
  uint64_t window[2] = {0, 0};  // the longest that is read; UINT64_MAX: from position 0
};

std::vector<GroupUse> group_uses(const Plan &plan) {
  std::vector<GroupUse> uses(plan.group_count);
  for (const Op &op : plan.ops) {
    uint32_t group, pool, window = 0;
    bool writes = false, reads = true;
    switch (op.kind) {
      case kAttention:
        group = op.ints[5], pool = 3, window = op.ints[6], writes = (op.flags & kOwnsKv) != 0;
        break;
      case kKvWrite:
        group = op.ints[3], pool = 2, writes = true, reads = false;
        break;
      case kAttend:
        group = op.ints[4], pool = 1, window = op.ints[5];
        break;
      default:
        continue;
    }
    GroupUse &use = uses[group];
    const int64_t pages = op.operands[pool]->dims[0];
    const uint32_t rows = op.operands[0]->dims[0] == -1 - static_cast<int64_t>(kRows) ? 0 : 1;
    use.used = true;
    use.pages = std::min(use.pages, pages < 0 ? plan.symbol_max[-1 - pages] : static_cast<uint64_t>(pages));
    use.writes[rows] = use.writes[rows] || writes;
    if (!reads) continue;
    use.reads[rows] = true;
    use.window[rows] = std::max(use.window[rows], window == 0 ? UINT64_MAX : uint64_t(window));
  }
  return uses;
}

// Page tables lie inside `table`, and name pages that the group's pools have.
void check_tables(const Input &input, uint32_t g, const GroupUse &use) {
  const Input::Group &group = input.groups[g];
  for (uint32_t s = 0; s < input.header.sequences; s++) {
    const uint64_t end = static_cast<uint64_t>(group.start[s]) + group.count[s];
    if (end > input.header.table_entries || static_cast<uint64_t>(group.first[s]) + group.count[s] > UINT32_MAX) {
      fail(MB_INVALID_INPUT, "group %u, sequence %u: its page table lies outside the %u entries", g, s,
           input.header.table_entries);
    }
    for (uint64_t e = group.start[s]; use.used && e < end; e++) {
      if (input.table[e] != kNoPage && input.table[e] >= use.pages) {
        fail(MB_INVALID_INPUT, "group %u, sequence %u: there is no page %u of %llu", g, s, input.table[e],
             ull(use.pages));
      }
    }
  }
}

// Every page that a row reads or writes is present, and no two rows write one slot.
void check_pages(const Input &input, uint32_t g, const GroupUse &use) {
  const Input::Group &group = input.groups[g];
  // absent[e]: absent pages among the first e entries of a table, so that a range is checked at once
  std::vector<std::vector<uint32_t>> absent(input.header.sequences);
  for (uint32_t s = 0; s < input.header.sequences; s++) {
    absent[s].push_back(0);
    for (uint32_t e = 0; e < group.count[s]; e++) {
      absent[s].push_back(absent[s].back() + (input.table[group.start[s] + e] == kNoPage ? 1 : 0));
    }
  }
  const auto present = [&](uint32_t s, uint32_t from, uint32_t to) {  // page indices, both included
    const uint32_t first = group.first[s];
    if (from < first || uint64_t(to) >= uint64_t(first) + group.count[s]) return false;
    return absent[s][to - first + 1] == absent[s][from - first];
  };
  std::vector<uint64_t> slots;
  for (uint32_t symbol = 0; symbol < 2; symbol++) {
    if (!use.writes[symbol] && !use.reads[symbol]) continue;
    const uint32_t count = symbol == 0 ? input.header.rows : input.header.out_rows;
    slots.clear();
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t r = symbol == 0 ? i : input.out_row[i];
      const uint32_t s = input.sequence[r], position = input.position[r];
      uint32_t from = position / kPageTokens, last = from;
      if (use.reads[symbol]) {
        const uint64_t window = use.window[symbol];
        from = window > position ? 0 : static_cast<uint32_t>(position - window + 1) / kPageTokens;
        if (input.block_first != nullptr) {  // as if every attention read the whole block
          from = std::min(from, input.block_first[r] / kPageTokens);
          last = input.block_last[r] / kPageTokens;
        }
      }
      if (!present(s, from, last)) {
        fail(MB_INVALID_INPUT, "row %u: group %u holds not all of the pages %u to %u of sequence %u", r, g, from, last,
             s);
      }
      if (use.writes[symbol]) {
        slots.push_back(uint64_t(input.page(g, s, position)) * kPageTokens + position % kPageTokens);
      }
    }
    std::sort(slots.begin(), slots.end());
    const auto twice = std::adjacent_find(slots.begin(), slots.end());
    if (twice != slots.end()) {
      fail(MB_INVALID_INPUT, "group %u: two rows write slot %llu of page %llu", g, ull(*twice % kPageTokens),
           ull(*twice / kPageTokens));
    }
  }
}

}  // namespace

uint64_t Input::symbol(uint32_t index) const {
  switch (index) {
    case kRows:
      return header.rows;
    case kOutRows:
      return header.out_rows;
    case kSequences:
      return header.sequences;
    default:
      return header.table_entries;
  }
}

uint32_t Input::page(uint32_t g, uint32_t sequence, uint32_t position) const {
  const Group &group = groups[g];
  const uint32_t index = position / kPageTokens, first = group.first[sequence];
  if (index < first || index - first >= group.count[sequence]) return kNoPage;
  return table[group.start[sequence] + (index - first)];
}

Input check_input(const Plan &plan, const void *bytes, uint64_t size) {
  if (reinterpret_cast<uintptr_t>(bytes) % 4 != 0) {
    fail(MB_INVALID_INPUT, "the input block does not begin at a multiple of 4 bytes");
  }
  if (size % 4 != 0 || size < sizeof(InputHeader)) {
    fail(MB_INVALID_INPUT, "%llu bytes are no input block", ull(size));
  }
  Input input;
  memcpy(&input.header, bytes, sizeof input.header);
  const InputHeader &header = input.header;
  check_header(plan, header);
  Words words(static_cast<const uint8_t *>(bytes) + sizeof header, (size - sizeof header) / 4);
  input.token = words.take(header.rows);
  input.position = words.take(header.rows);
  input.sequence = words.take(header.rows);
  input.row_class = words.take(header.rows);
  input.out_row = words.take(header.out_rows);
  for (uint32_t g = 0; g < plan.group_count; g++) {
    const uint32_t *start = words.take(header.sequences), *first = words.take(header.sequences);
    input.groups.push_back({start, first, words.take(header.sequences)});
  }
  input.table = words.take(header.table_entries);
  input.adjustment_start = words.take(uint64_t(header.out_rows) + 1);
  input.adjustment_id = words.take(header.adjustments);
  input.adjustment_multiply = words.take<float>(header.adjustments);
  input.adjustment_add = words.take<float>(header.adjustments);
  input.temperature = words.take<float>(header.out_rows);
  input.mask_of = words.take(header.out_rows);
  input.mask = words.take(header.masks * ((uint64_t(plan.vocabulary_size) + 31) / 32));
  if ((header.extras & kSoftRows) != 0) input.soft_row = words.take(header.rows);
  if ((header.extras & kBlocks) != 0) {
    input.block_first = words.take(header.rows);
    input.block_last = words.take(header.rows);
  }
  if (words.left() != 0) {
    fail(MB_INVALID_INPUT, "the input block has %llu bytes after its last array", ull(words.left() * 4));
  }
  check_rows(plan, input);
  check_logit_changes(plan, input);
  check_extras(plan, input);
  const std::vector<GroupUse> uses = group_uses(plan);
  for (uint32_t g = 0; g < plan.group_count; g++) {
    check_tables(input, g, uses[g]);
    if (uses[g].used) check_pages(input, g, uses[g]);
  }
  return input;
}

}  // namespace mb
