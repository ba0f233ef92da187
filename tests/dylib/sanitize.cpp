// sanitize.cpp: tries hostile plans and input blocks against the CPU device, built with the address and undefined-behaviour
// sanitizers by sanitize_test.ts. Buffers are single heap blocks of exactly their size, so that one byte outside is seen.
// Arguments: path of a sample, see samples.h.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.h"
#include "samples.h"

using namespace mb;

namespace {

class HeapBuffer final : public Buffer {
 public:
  explicit HeapBuffer(uint64_t bytes) {
    size = bytes;
    writable = true;
    host = static_cast<uint8_t *>(aligned_alloc(64, bytes));  // bytes is a multiple of 64
    memset(host, 0, bytes);
  }
  ~HeapBuffer() override { free(host); }
  void read(uint64_t offset, void *to, uint64_t bytes) override { memcpy(to, host + offset, bytes); }
  void write(uint64_t offset, const void *from, uint64_t bytes) override { memcpy(host + offset, from, bytes); }
  void fill(uint64_t offset, uint64_t bytes, uint8_t value) override { memset(host + offset, value, bytes); }
  void copy_from(uint64_t offset, Buffer &from, uint64_t at, uint64_t bytes) override {
    from.read(at, host + offset, bytes);
  }
};

Random random_words{1};

struct Counts {
  unsigned refused = 0, ran = 0;
};

struct Target {
  std::shared_ptr<Device> device;
  std::vector<std::shared_ptr<Buffer>> buffers;
  Bytes weights;
  Counts counts;

  // Compiles and runs exact copies on the heap, so that reading past the end of either is seen too.
  void attempt(const Bytes &plan, const Bytes &input) {
    try {
      buffers[1]->write(0, weights.data(), weights.size());
      const std::unique_ptr<uint8_t[]> plan_copy(new uint8_t[plan.size()]), input_copy(new uint8_t[input.size()]);
      memcpy(plan_copy.get(), plan.data(), plan.size());
      memcpy(input_copy.get(), input.data(), input.size());
      auto decoded = decode_plan(plan_copy.get(), plan.size(), buffers, device->weight_alignment());
      auto pass = device->compile(std::move(decoded));
      const Input checked = check_input(*pass->plan, input_copy.get(), input.size());
      pass->run(checked);
      counts.ran++;
    } catch (const Error &error) {
      if (error.status == MB_INTERNAL || error.text.empty()) abort();
      counts.refused++;
    }
  }
};

// Every word of `bytes` in turn gets hostile values; then several words at once.
template <class Attempt>
void mutate(const Bytes &bytes, unsigned rounds, const Attempt &attempt) {
  Bytes changed = bytes;
  const size_t words = bytes.size() / 4;
  const auto word = [&](size_t at) {
    uint32_t value;
    memcpy(&value, bytes.data() + at * 4, 4);
    return value;
  };
  const auto set = [&](size_t at, uint32_t value) { memcpy(changed.data() + at * 4, &value, 4); };
  for (size_t at = 0; at < words; at++) {
    const uint32_t v = word(at);
    for (const uint32_t value : {0u, 1u, 2u, 3u, 32u, 64u, 256u, 0x7fffffffu, 0x80000000u, 0xfffffffeu, 0xffffffffu,
                                 0x7f800000u, 0x3f800000u, v + 1, v - 1, v * 2, v / 2, v + 64, v + 4, v - 4}) {
      set(at, value);
      attempt(changed);
    }
    set(at, v);
  }
  for (unsigned round = 0; round < rounds; round++) {
    changed = bytes;
    for (uint32_t n = 1 + random_words.below(3); n > 0; n--) {
      set(random_words.below(uint32_t(words)), word(random_words.below(uint32_t(words))));
    }
    attempt(changed);
  }
}

}  // namespace

int main(int count, char **arguments) {
  if (count != 2) return 2;
  const Sample sample(arguments[1]);
  const Bytes &plan = sample.plan, &input = sample.input;
  Target target;
  target.weights = sample.weights;
  target.device = open_cpu_device("{\"threads\":1}");
  for (uint64_t i = 0; i < sample.buffer_count(); i++) {
    target.buffers.push_back(std::make_shared<HeapBuffer>(sample.buffer_bytes(i)));
  }
  target.attempt(plan, input);
  if (target.counts.ran != 1) return 3;  // the good ones must run
  mutate(plan, 3000, [&](const Bytes &changed) { target.attempt(changed, input); });
  mutate(input, 3000, [&](const Bytes &changed) { target.attempt(plan, changed); });
  printf("{\"refused\":%u,\"ran\":%u}\n", target.counts.refused, target.counts.ran);
}
