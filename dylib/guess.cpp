#include "guess.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "device.h"

namespace mb {

namespace {

// Noise, as src/sample/noise.ts has it, which says why.
constexpr uint32_t kBlock = 256, kGroup = 16;
constexpr uint32_t kOfBlock = 0x80000000, kOfGroup = 0x40000000;

uint32_t mixed(uint32_t word) {
  word = (word ^ word >> 16) * 0x7feb352du;
  word = (word ^ word >> 15) * 0x846ca68bu;
  return word ^ word >> 16;
}

struct Hash {
  uint32_t words[3];

  Hash(uint64_t seed, uint32_t position, uint32_t word) {
    uint32_t x = static_cast<uint32_t>(seed) * 1664525u + 1013904223u;
    uint32_t y = static_cast<uint32_t>(seed >> 32) * 1664525u + 1013904223u;
    uint32_t z = mixed(position) * 1664525u + 1013904223u;
    uint32_t w = mixed(word) * 1664525u + 1013904223u;
    for (int round = 0; round < 2; round++) {
      x += y * w;
      y += z * x;
      z += x * y;
      w += y * z;
      if (round == 1) break;
      x ^= x >> 16;
      y ^= y >> 16;
      z ^= z >> 16;
      w ^= w >> 16;
    }
    words[0] = x, words[1] = y, words[2] = w;
  }

  double uniform() const { return (words[0] * 0x1p20 + (words[2] >> 12) + 0.5) * 0x1p-52; }
  double rate() const { return -std::log(uniform()); }
  double least_rate() const { return 1 - uniform(); }  // never above that
  uint32_t place(uint32_t count) const { return static_cast<uint32_t>(uint64_t(words[1]) * count >> 32); }
};

double gumbel(uint64_t seed, uint32_t position, uint32_t token) {
  const Hash of_block(seed, position, kOfBlock + token / kBlock);
  double rate = of_block.rate() / kBlock;
  const uint32_t largest = of_block.place(kBlock), own = token % kBlock;
  if (largest == own) return -std::log(rate);
  if (largest / kGroup != own / kGroup) {
    const Hash of_group(seed, position, kOfGroup + token / kGroup);
    rate += of_group.rate() / kGroup;
    if (of_group.place(kGroup) == token % kGroup) return -std::log(rate);
  }
  return -std::log(rate + Hash(seed, position, token).rate());
}

template <class T>
T read(const uint8_t *from) {
  T value;
  memcpy(&value, from, sizeof value);
  return value;
}

// A token and its logit / T + noise.
struct Drawn {
  uint32_t id;
  double score;

  void consider(uint32_t other, double its) {
    if (its < score || (its == score && other > id)) return;
    id = other;
    score = its;
  }
};

// The tokens beyond the candidates whose noise is so large that they may win with a logit of `last` at most, as drawWithTail and
// eachReaching look for them.
void consider_tail(Drawn &drawn, const Draw &draw, const float *logits, uint32_t vocabulary, double last, double floor) {
  const double T = draw.temperature;
  const auto hash = [&](uint32_t word) { return Hash(draw.seed, draw.position, word); };
  const auto lacking = [&] { return std::exp(last / T - drawn.score) * (1 + 1e-8); };  // e^-noise
  double least = lacking();
  for (uint32_t begin = 0; begin < vocabulary; begin += kBlock) {
    const Hash block = hash(kOfBlock + begin / kBlock);
    if (block.least_rate() / kBlock > least) continue;
    const double of_block = block.rate() / kBlock;
    if (of_block > least) continue;
    const uint32_t of_all = begin + block.place(kBlock), end = std::min(begin + kBlock, vocabulary);
    for (uint32_t first = begin; first < end; first += kGroup) {
      double rate = of_block;
      uint32_t largest = of_all;
      if (first / kGroup != of_all / kGroup) {
        const Hash group = hash(kOfGroup + first / kGroup);
        if (rate + group.least_rate() / kGroup > least) continue;
        rate += group.rate() / kGroup;
        if (rate > least) continue;
        largest = first + group.place(kGroup);
      }
      for (uint32_t token = first; token < std::min(first + kGroup, end); token++) {
        if (token != largest && rate + hash(token).least_rate() > least) continue;
        const double logit = logits[token];
        if (!(logit >= floor) || logit == -INFINITY) continue;
        drawn.consider(token, logit / T + gumbel(draw.seed, draw.position, token));
        least = lacking();
      }
    }
  }
}

// A row of an output that the host can read where it is, else null.
const float *row_of(const Plan &plan, uint64_t output, uint64_t row) {
  if (output >= plan.outputs.size()) return nullptr;
  const Tensor &tensor = *plan.outputs[output];
  const uint8_t *host = plan.buffers[tensor.buffer]->host;
  const uint64_t bytes = uint64_t(plan.vocabulary_size) * 4;
  if (!host || tensor.format != kF32 || (row + 1) * bytes > tensor.max_bytes) return nullptr;
  return reinterpret_cast<const float *>(host + tensor.offset) + row * plan.vocabulary_size;
}

// Whole numbers travel as f64, as they are in JavaScript.
uint64_t whole(double number, double most, const char *what) {
  if (!(number >= 0 && number <= most) || number != std::floor(number)) fail(MB_INVALID_ARGUMENT, "a draw's %s is wrong", what);
  return static_cast<uint64_t>(number);
}

uint64_t place(double number, uint64_t bytes, uint64_t output_bytes, const char *what) {
  const uint64_t at = whole(number, 0x1p40, what);
  if (at % 4 != 0 || bytes > output_bytes || at > output_bytes - bytes) {
    fail(MB_INVALID_ARGUMENT, "a draw's %s are outside the outputs", what);
  }
  return at;
}

}  // namespace

Draws read_draws(const double *numbers, uint64_t count, uint64_t rows, uint64_t output_bytes) {
  if (rows == 0 || rows > count / kDrawNumbers) fail(MB_INVALID_ARGUMENT, "the draws are not those of all rows");
  Draws draws;
  draws.rows.resize(rows);
  draws.adds.assign(numbers + rows * kDrawNumbers, numbers + count);
  for (Draw &draw : draws.rows) {
    draw.count = whole(numbers[3], 0x1p20, "number of candidates");
    draw.ids = place(numbers[0], draw.count * 4, output_bytes, "candidates");
    draw.values = place(numbers[1], draw.count * 4, output_bytes, "logits");
    draw.statistics = place(numbers[2], 4, output_bytes, "statistics");
    draw.position = static_cast<uint32_t>(whole(numbers[4], 0xffffffff, "position"));
    draw.seed = whole(numbers[5], 0x1p53, "seed");
    draw.temperature = numbers[6];
    draw.top_k = whole(numbers[7], 0x1p53, "top-k");
    draw.top_p = numbers[8];
    draw.min_p = numbers[9];
    draw.multiply = numbers[10];
    draw.add = numbers[11];
    draw.logits = whole(numbers[12], kNoLogits, "output of logits");
    const bool is_decided = draw.temperature == 0 || (draw.logits == kNoLogits ? draw.top_k > 0 && draw.top_k <= draw.count
                                                                               : draw.top_k == 0 && draw.top_p == 1);
    if (!is_decided || !(draw.temperature >= 0)) fail(MB_INVALID_ARGUMENT, "candidates do not decide a draw");
    numbers += kDrawNumbers;
  }
  return draws;
}

uint32_t guess_token(const Draw &draw, const uint8_t *outputs, const float *logits, uint32_t vocabulary) {
  const auto id = [&](uint64_t i) { return read<uint32_t>(outputs + draw.ids + 4 * i); };
  const auto value = [&](uint64_t i) { return double(read<float>(outputs + draw.values + 4 * i)); };
  uint64_t count = draw.count;
  while (count > 0 && (id(count - 1) == kNone || value(count - 1) == -INFINITY)) count--;
  if (count == 0 || !std::isfinite(value(0)) || !std::isfinite(read<float>(outputs + draw.statistics))) return kNone;
  if (draw.temperature == 0 || draw.top_k == 1) return id(0);

  const double T = draw.temperature;
  const auto weight = [&](uint64_t i) { return std::exp((value(i) - value(0)) / T); };
  const double floor = draw.min_p > 0 ? value(0) + T * std::log(draw.min_p) : -INFINITY;
  const bool is_whole = draw.logits != kNoLogits;
  uint64_t kept = is_whole ? count : std::min(count, draw.top_k);
  if (draw.top_p < 1) {
    double all = 0, sum = 0;
    for (uint64_t i = 0; i < kept; i++) all += weight(i);
    uint64_t length = 0;
    do sum += weight(length++);
    while (length < kept && sum < draw.top_p * all);
    kept = length;
  }
  Drawn drawn = {id(0), -INFINITY};
  for (uint64_t i = 0; i < kept && (i == 0 || value(i) >= floor); i++) {
    drawn.consider(id(i), value(i) / T + gumbel(draw.seed, draw.position, id(i)));
  }
  if (is_whole && count == draw.count) {
    if (!logits) return kNone;
    consider_tail(drawn, draw, logits, vocabulary, value(count - 1), floor);
  }
  return drawn.id;
}

bool put_guesses(std::vector<uint32_t> &input, const Plan &plan, const Draws &draws, const std::vector<uint8_t> &outputs) {
  const uint64_t rows = draws.rows.size();
  InputHeader header;
  memcpy(&header, input.data(), sizeof header);
  std::vector<uint32_t> tokens;
  bool penalises = false;
  for (const Draw &draw : draws.rows) {
    const uint32_t token = guess_token(draw, outputs.data(), row_of(plan, draw.logits, tokens.size()), plan.vocabulary_size);
    if (token == kNone) return false;
    input[kInputHeaderWords + tokens.size()] = token;
    tokens.push_back(token);
    penalises |= draw.multiply != 0;
  }
  if (!penalises) return true;

  // The arrays before the adjustments, the adjustments' three, and their new forms with one more each at most.
  const uint64_t starts = kInputHeaderWords + 4ull * header.rows + header.out_rows +
                          3ull * plan.group_count * header.sequences + header.table_entries;
  const uint64_t ids = starts + rows + 1, count = header.adjustments;
  if (header.out_rows != rows || draws.adds.size() != count || input.size() < ids + 3 * count) return false;
  std::vector<uint32_t> arrays[4];  // starts, ids, multipliers, addends
  const auto put = [&](uint32_t id, uint32_t multiply, uint32_t add) {
    arrays[1].push_back(id);
    arrays[2].push_back(multiply);
    arrays[3].push_back(add);
  };
  const auto bits = [](double number) {
    const float single = static_cast<float>(number);
    uint32_t word;
    memcpy(&word, &single, sizeof word);
    return word;
  };
  for (uint64_t row = 0; row < rows; row++) {
    const Draw &draw = draws.rows[row];
    const uint32_t token = tokens[row], begin = input[starts + row], end = input[starts + row + 1];
    if (begin > end || end > count) return false;
    arrays[0].push_back(static_cast<uint32_t>(arrays[1].size()));
    bool is_there = draw.multiply == 0;
    for (uint64_t i = begin; i < end; i++) {
      const uint32_t id = input[ids + i];
      if (!is_there && id > token) put(token, bits(draw.multiply), bits(draw.add)), is_there = true;
      const bool changes = draw.multiply != 0 && id == token;
      put(id, changes ? bits(draw.multiply) : input[ids + count + i], changes ? bits(draws.adds[i]) : input[ids + 2 * count + i]);
      is_there |= changes;
    }
    if (!is_there) put(token, bits(draw.multiply), bits(draw.add));
  }
  const auto total = static_cast<uint32_t>(arrays[1].size());
  arrays[0].push_back(total);
  input[offsetof(InputHeader, adjustments) / 4] = total;
  std::vector<uint32_t> changed(input.begin(), input.begin() + starts);
  for (const std::vector<uint32_t> &array : arrays) changed.insert(changed.end(), array.begin(), array.end());
  changed.insert(changed.end(), input.begin() + ids + 3 * count, input.end());
  input = std::move(changed);
  return true;
}

}  // namespace mb
