// threads.cpp: drives markbase.h from many threads at once, as ffi/ does, built with the thread sanitizer (or the address and
// undefined-behaviour sanitizers) by sanitize_test.ts. What each run gives must be what it gives alone, bit for bit.
// Arguments: folder of the samples, number of generations of each client, seed. Prints what happened as JSON.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include "cpu/pool.h"
#include "guess.h"
#include "markbase.h"
#include "samples.h"

using namespace mb;

namespace {

// The decode sample is the fused one with one decode row: its candidates, their logits and statistics are copied out, its logits can be read.
constexpr uint64_t kIds = 0, kValues = 1024, kStatistics = 2048, kOutputBytes = 2064;
constexpr uint32_t kVocabulary = 40, kFirstPosition = 32, kSteps = 16, kGenerations = 12;
constexpr uint64_t kTokenAt = kInputHeaderWords * 4, kPositionAt = kTokenAt + 4;
constexpr uint64_t kPagesAt = kTokenAt + 4 * (4 + 1 + 2 * 3 + 2);  // of page group 1
constexpr uint64_t kErrorBytes = 256;

[[noreturn]] void stop(const std::string &what) {
  fprintf(stderr, "%s\n", what.c_str());
  fflush(stderr);
  _Exit(4);
}

void require(bool is_so, const std::string &what) {
  if (!is_so) stop(what);
}

// A call's status, and its text.
struct Result {
  int32_t status;
  std::string text;
};

template <class Call>
Result call(const Call &make) {
  char text[kErrorBytes] = "";
  const int32_t status = make(text, kErrorBytes);
  return {status, text};
}

template <class Call>
void succeed(const char *what, const Call &make) {
  const Result result = call(make);
  require(result.status == MB_OK, std::string(what) + ": " + result.text);
}

struct Counts {
  std::atomic<uint64_t> runs{0}, ahead{0}, instead{0}, cancelled{0}, failed{0}, refused{0}, compiled{0}, loops{0};
} counts;

// Handles, released at the end of the scope.
struct DeviceHandle {
  mb_device *device = nullptr;
  explicit DeviceHandle(const std::string &options) {
    succeed("open", [&](char *err, uint64_t cap) {
      return mb_device_open("cpu", 3, options.data(), options.size(), &device, err, cap);
    });
  }
  ~DeviceHandle() { mb_device_release(device); }
  DeviceHandle(const DeviceHandle &) = delete;
  DeviceHandle &operator=(const DeviceHandle &) = delete;

  struct Memory {
    uint64_t mapped, created, repacked, scratch, peak, buffers, passes, replaced;
  };
  Memory memory() const {
    Memory values{};
    succeed("memory", [&](char *err, uint64_t cap) { return mb_device_memory(device, &values.mapped, err, cap); });
    return values;
  }
};

struct BufferHandle {
  mb_buffer *buffer = nullptr;
  BufferHandle(const DeviceHandle &owner, uint64_t bytes) {
    succeed("create", [&](char *err, uint64_t cap) { return mb_buffer_create(owner.device, bytes, &buffer, err, cap); });
  }
  BufferHandle(const DeviceHandle &owner, const std::string &path, uint64_t bytes) {
    succeed("map", [&](char *err, uint64_t cap) {
      return mb_buffer_map(owner.device, path.data(), path.size(), 0, bytes, &buffer, err, cap);
    });
  }
  ~BufferHandle() { mb_buffer_release(buffer); }
  BufferHandle(const BufferHandle &) = delete;
  BufferHandle &operator=(const BufferHandle &) = delete;

  void write(const Bytes &bytes) {
    succeed("write", [&](char *err, uint64_t cap) { return mb_buffer_write(buffer, 0, bytes.data(), bytes.size(), err, cap); });
  }
  Bytes read(uint64_t offset, uint64_t bytes) const {
    Bytes to(bytes);
    succeed("read", [&](char *err, uint64_t cap) { return mb_buffer_read(buffer, offset, to.data(), bytes, err, cap); });
    return to;
  }
};

using SharedBuffer = std::shared_ptr<BufferHandle>;

// A pass with an arena and pages of its own.
struct PassHandle {
  mb_pass *pass = nullptr;
  SharedBuffer arena;

  PassHandle(const DeviceHandle &owner, const Sample &sample, const Bytes &plan, const SharedBuffer &weights) {
    arena = std::make_shared<BufferHandle>(owner, sample.buffer_bytes(0));
    const BufferHandle pages(owner, sample.buffer_bytes(2));
    mb_buffer *const buffers[] = {arena->buffer, weights->buffer, pages.buffer};
    succeed("compile", [&](char *err, uint64_t cap) {
      return mb_pass_compile(owner.device, plan.data(), plan.size(), buffers, 3, &pass, err, cap);
    });
    counts.compiled++;
  }
  ~PassHandle() { mb_pass_release(pass); }
  PassHandle(const PassHandle &) = delete;
  PassHandle &operator=(const PassHandle &) = delete;

  Result run(const Bytes &input, Bytes &output) const {
    uint64_t statistics[8];
    return call([&](char *err, uint64_t cap) {
      return mb_pass_run(pass, input.data(), input.size(), output.data(), output.size(), statistics, err, cap);
    });
  }
  Result time(const Bytes &input, uint64_t repetitions) const {
    std::vector<double> seconds(repetitions);
    return call([&](char *err, uint64_t cap) {
      return mb_pass_time(pass, input.data(), input.size(), seconds.data(), repetitions, err, cap);
    });
  }
  Result start(const Bytes &input) const {
    return call([&](char *err, uint64_t cap) { return mb_pass_start(pass, input.data(), input.size(), err, cap); });
  }
  Result follow(const Bytes &input, const std::vector<double> &draws) const {
    return call([&](char *err, uint64_t cap) {
      return mb_pass_follow(pass, input.data(), input.size(), draws.data(), draws.size(), kOutputBytes, err, cap);
    });
  }
  Result finish(Bytes &output, uint64_t *statistics) const {
    return call([&](char *err, uint64_t cap) {
      return mb_pass_finish(pass, output.data(), output.size(), statistics, err, cap);
    });
  }
  void info() const {
    char text[16384];
    uint64_t length;
    succeed("info", [&](char *err, uint64_t cap) { return mb_pass_info(pass, text, sizeof text, &length, err, cap); });
  }
};

// ---- what runs give alone

// How the tokens of a generation are drawn.
struct Way {
  uint64_t seed;
  double temperature, top_k;
  bool is_whole;  // all logits decide
};
constexpr Way kWays[] = {{0, 0, 0, false}, {1, 1, 30, false}, {2, 30, 256, false}, {3, 20, 0, true}};

std::vector<double> draws_of(const Way &way, uint32_t position) {
  return {double(kIds), double(kValues), double(kStatistics), 256, double(position), double(way.seed), way.temperature,
          way.top_k,    1,               0,                   0,   0,                way.is_whole ? 0.0 : double(kNoLogits)};
}

uint32_t draw(const Way &way, uint32_t position, const Bytes &output, const Bytes &logits) {
  const std::vector<double> numbers = draws_of(way, position);
  const Draws draws = read_draws(numbers.data(), numbers.size(), 1, kOutputBytes);
  return guess_token(draws.rows[0], output.data(), reinterpret_cast<const float *>(logits.data()), kVocabulary);
}

struct Step {
  Bytes input, output, logits;  // of the token that was drawn
  Bytes wrong_input, wrong_output;  // of another one in its place
};

struct Generation {
  Way way;
  std::vector<Step> steps;
};

Bytes block_of(const Sample &sample, uint32_t token, uint32_t position) {
  Bytes block = sample.input;
  put(block, kTokenAt, token);
  put(block, kPositionAt, position);
  return block;
}

// The same row with its keys and values on two other pages.
Bytes elsewhere(Bytes block) {
  put(block, kPagesAt, 4u);
  put(block, kPagesAt + 4, 2u);
  return block;
}

Bytes logits_of(const PassHandle &pass, const Sample &sample) {
  return pass.arena->read(sample.output_offset(0), kVocabulary * sizeof(float));
}

std::vector<Generation> generate_alone(const PassHandle &pass, const Sample &sample) {
  std::vector<Generation> all;
  for (uint32_t i = 0; i < kGenerations; i++) {
    Generation generation{kWays[i % 4], {}};
    uint32_t token = i * 3;
    for (uint32_t position = kFirstPosition; position < kFirstPosition + kSteps; position++) {
      Step step;
      step.wrong_input = block_of(sample, (token + 1) % kVocabulary, position);
      step.input = block_of(sample, token, position);
      step.wrong_output = step.output = Bytes(kOutputBytes);
      require(pass.run(step.wrong_input, step.wrong_output).status == MB_OK, "a run alone fails");
      require(pass.run(step.input, step.output).status == MB_OK, "a run alone fails");
      require(step.output != step.wrong_output, "a run does not depend on its token");
      step.logits = logits_of(pass, sample);
      token = draw(generation.way, position + 1, step.output, step.logits);
      require(token < kVocabulary, "no token is drawn");
      generation.steps.push_back(std::move(step));
    }
    all.push_back(std::move(generation));
  }
  return all;
}

Bytes with_flags(Bytes plan, uint32_t set, uint32_t cleared) {
  constexpr uint64_t offset = offsetof(PlanHeader, flags);
  put(plan, offset, (at<uint32_t>(plan, offset) | set) & ~cleared);
  return plan;
}

// A device with what its clients share.
struct Place {
  const std::string options, folder;
  const DeviceHandle device;
  const std::map<std::string, Sample> &samples;
  std::map<std::string, SharedBuffer> weights;
  std::map<std::string, Bytes> outputs;  // of each sample's input
  Bytes fast_plan;                       // of the decode sample: with interleaved weights
  std::vector<Generation> exact, fast;

  Place(const std::string &the_options, const std::string &the_folder, const std::map<std::string, Sample> &the_samples)
      : options(the_options), folder(the_folder), device(options), samples(the_samples) {
    for (const auto &[name, sample] : samples) {
      weights[name] = std::make_shared<BufferHandle>(device, sample.buffer_bytes(1));
      weights[name]->write(sample.weights);
      const PassHandle pass(device, sample, sample.plan, weights[name]);
      Bytes output(1 << 16);
      // The size is told by the refusal of a wrong one.
      const std::string text = pass.run(sample.input, output).text;
      output.resize(strtoull(text.substr(text.rfind("have ") + 5).c_str(), nullptr, 10));
      require(pass.run(sample.input, output).status == MB_OK, "a sample does not run");
      outputs[name] = output;
    }
    const Sample &decode = samples.at("decode");
    fast_plan = with_flags(decode.plan, 0, kPlanExact);
    exact = generate_alone(PassHandle(device, decode, decode.plan, weights["decode"]), decode);
    fast = generate_alone(PassHandle(device, decode, fast_plan, weights["decode"]), decode);
  }
};

// ---- clients

void sleep_below(Random &random, uint32_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(random.below(microseconds)));
}

// What another thread does to a pass at some moment of its run.
enum class Meddling { kNone, kCancel, kDrop, kLook, kRun, kCount };

std::future<void> meddle(const PassHandle &pass, const DeviceHandle &device, const Step &first, Meddling how, uint32_t microseconds) {
  return std::async(std::launch::async, [&pass, &device, &first, how, microseconds] {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    if (how == Meddling::kCancel) mb_pass_cancel(pass.pass);
    if (how == Meddling::kDrop) mb_pass_drop(pass.pass);
    if (how == Meddling::kLook) {
      pass.info();
      device.memory();
      mb_pass_wait(pass.pass, 1000);
    }
    if (how != Meddling::kRun) return;
    for (int i = 0; i < 3; i++) {  // on pages of its own
      Bytes output(kOutputBytes);
      const Result result = pass.run(elsewhere(first.input), output);
      require(result.status == MB_OK, "a run beside others of its pass fails: " + result.text);
      require(output == first.output, "another output than alone beside others of its pass");
    }
  });
}

// Generates as the engine does: each forward is foreseen, begun and waited for in one way or another, and may be followed.
class Generator {
 public:
  Generator(const Place &place, bool is_fast, uint32_t seed)
      : place_(place),
        sample_(place.samples.at("decode")),
        generations_(is_fast ? place.fast : place.exact),
        pass_(place.device, sample_, is_fast ? place.fast_plan : sample_.plan, place.weights.at("decode")),
        random_{seed} {}

  void generate(uint32_t times) {
    while (times-- > 0) {
      const Generation &generation = generations_[random_.below(uint32_t(generations_.size()))];
      for (uint32_t i = 0; i < kSteps; i++) {
        const Step &step = generation.steps[i];
        if (random_.below(6) == 0) until_done(generation, step.wrong_input, step.wrong_output, [] { return Bytes(); });
        until_done(generation, step.input, step.output, [&] { return following(generation, i); });
        // What it left in buffers is there until the next is asked for.
        if (generation.way.is_whole && random_.below(2) == 0) require(logits_of(pass_, sample_) == step.logits, "other logits than alone");
        between();
      }
    }
  }

 private:
  // Runs until nobody cancels it.
  template <class Following>
  void until_done(const Generation &generation, const Bytes &input, const Bytes &expected, const Following &next) {
    for (;;) {
      auto how = static_cast<Meddling>(random_.below(3) == 0 ? random_.below(uint32_t(Meddling::kCount)) : 0);
      // Logits that decide lie in the pass's own memory.
      if (how == Meddling::kRun && generation.way.is_whole) how = Meddling::kNone;
      std::future<void> meddler;
      if (how != Meddling::kNone) meddler = meddle(pass_, place_.device, generation.steps[0], how, random_.below(3000));
      Bytes output(expected.size());
      const Result result = random_.below(5) == 0 ? run(input, output) : run_foreseen(input, output, next);
      if (meddler.valid()) meddler.get();
      if (how == Meddling::kCancel) mb_pass_resume(pass_.pass);
      if (result.status == MB_OK) {
        require(output == expected, "another output than alone");
        counts.runs++;
        return;
      }
      if (result.status == MB_INVALID_ARGUMENT && output.size() != expected.size()) {
        counts.refused++;
        continue;
      }
      require(result.status == MB_CANCELLED && how == Meddling::kCancel, "a run fails: " + result.text);
      counts.cancelled++;
    }
  }

  Result run(const Bytes &input, Bytes &output) {
    if (random_.below(4) == 0) {
      const Result timed = pass_.time(input, 1 + random_.below(3));
      if (timed.status != MB_OK) return timed;
    }
    // A nonblocking call: another thread makes it.
    if (random_.below(2) == 0) return std::async(std::launch::async, [&] { return pass_.run(input, output); }).get();
    return pass_.run(input, output);
  }

  // The block that follows, with draws in `draws_`; empty where none is to follow.
  Bytes following(const Generation &generation, uint32_t i) {
    const uint32_t position = kFirstPosition + i + 1;
    draws_ = draws_of(generation.way, position);
    switch (random_.below(8)) {
      case 0: return {};
      case 1: return block_of(sample_, 0, position + 1);  // right draws, wrong position
      case 2: draws_[4]++; break;                         // other noise
      case 3: draws_[6] = -1; break;                      // refused
      case 4: return block_of(sample_, 0, 1u << 20);      // fails when it begins
      default: break;
    }
    return block_of(sample_, 0, position);
  }

  template <class Following>
  Result run_foreseen(const Bytes &input, Bytes &output, const Following &next) {
    const Result begun = pass_.start(input);
    if (begun.status != MB_OK) return begun;
    if (random_.below(8) == 0) sleep_below(random_, 3000);
    const Bytes block = next();
    if (!block.empty()) {
      const Result followed = pass_.follow(block, draws_);
      require(followed.status == MB_OK || draws_[6] < 0, "a following run is refused: " + followed.text);
      if (followed.status != MB_OK) counts.refused++;
    }
    switch (random_.below(5)) {
      case 0: mb_pass_wait(pass_.pass, random_.below(1000000)); break;
      case 1:
        for (int i = 0; i < 100 && mb_pass_wait(pass_.pass, 0) == 0; i++) std::this_thread::yield();
        break;
      case 2: sleep_below(random_, 2000); break;
      default: break;
    }
    if (random_.below(40) == 0) output.resize(8);  // the wrong size, which is told after the run
    uint64_t statistics[8] = {};
    const auto finish = [&] { return pass_.finish(output, statistics); };
    const Result result = random_.below(2) == 0 ? finish() : std::async(std::launch::async, finish).get();
    if (result.status == MB_OK) {
      counts.ahead += statistics[5];
      counts.instead += statistics[6];
    }
    return result;
  }

  void between() {
    switch (random_.below(16)) {
      case 0: mb_pass_drop(pass_.pass); break;
      case 1: sleep_below(random_, 1000); break;
      case 2: pass_.info(); break;
      case 3:
        if (random_.below(8) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(120));  // what began ahead gives up
        break;
      default: break;
    }
  }

  const Place &place_;
  const Sample &sample_;
  const std::vector<Generation> &generations_;
  const PassHandle pass_;
  Random random_;
  std::vector<double> draws_;
};

// Runs the samples, each pass for a while: scratch grows and shrinks with them, and with the last pass of a plan go its copies.
void run_samples(const Place &place, const std::atomic<bool> &ends, uint32_t seed) {
  Random random{seed};
  while (!ends) {
    auto chosen = place.samples.begin();
    std::advance(chosen, random.below(uint32_t(place.samples.size())));
    const auto &[name, sample] = *chosen;
    const Bytes &expected = place.outputs.at(name);
    const PassHandle pass(place.device, sample, sample.plan, place.weights.at(name));
    for (uint32_t n = random.below(20); n > 0; n--) {
      Bytes output(expected.size());
      require(pass.run(sample.input, output).status == MB_OK && output == expected, "another output of " + name + " than alone");
      counts.runs++;
      if (random.below(4) == 0) sleep_below(random, 1000);
    }
  }
}

// Passes that are made while others run, some with weights that lie in a mapped file, some on a device of their own. Buffers and that
// device are released before the pass is, and the pass while runs of it are under way.
void open_and_close(const Place &place, const std::atomic<bool> &ends, uint32_t seed) {
  Random random{seed};
  const Sample &sample = place.samples.at("decode");
  const auto coin = [&] { return random.below(2) == 0; };
  while (!ends) {
    // Kernels of one level give the same on each device.
    std::unique_ptr<DeviceHandle> own;
    if (random.below(3) == 0) own = std::make_unique<DeviceHandle>(place.options);
    const DeviceHandle &device = own ? *own : place.device;
    SharedBuffer weights = place.weights.at("decode");
    if (coin()) {
      weights = std::make_shared<BufferHandle>(device, place.folder + "/decode.weights", sample.weights.size());
    } else if (own) {
      weights = std::make_shared<BufferHandle>(device, sample.buffer_bytes(1));
      weights->write(sample.weights);
    }
    const bool is_fast = coin();
    const Generation &generation = (is_fast ? place.fast : place.exact)[random.below(kGenerations)];
    PassHandle pass(device, sample, is_fast ? place.fast_plan : sample.plan, weights);
    pass.arena.reset();
    weights.reset();
    own.reset();
    const Step &first = generation.steps[0], &second = generation.steps[1];
    Bytes output(kOutputBytes);
    if (coin()) {
      require(pass.run(first.input, output).status == MB_OK && output == first.output, "another output than alone at first");
    }
    require(pass.start(first.input).status == MB_OK, "a start fails");
    require(pass.follow(second.input, draws_of(generation.way, kFirstPosition + 1)).status == MB_OK, "a follow fails");
    if (coin()) sleep_below(random, 2000);
    if (coin()) {
      require(pass.finish(output, nullptr).status == MB_OK && output == first.output, "another output than alone of a new pass");
      if (coin()) require(pass.start(second.input).status == MB_OK, "a second start fails");
    }
    if (coin()) mb_pass_cancel(pass.pass);
  }
}

// Runs that fail while others run: each gets its own text.
void fail_runs(const Place &place, const std::atomic<bool> &ends, uint32_t seed) {
  Random random{seed};
  const Sample &sample = place.samples.at("elementary");
  const auto weights = std::make_shared<BufferHandle>(place.device, sample.buffer_bytes(1));
  Bytes bad = sample.weights;
  for (uint64_t i = 0; i + 4 <= bad.size(); i += 4) put(bad, i, INFINITY);
  weights->write(bad);
  const PassHandle infinite(place.device, sample, with_flags(sample.plan, kPlanCheckFinite, 0), weights);
  const PassHandle finite(place.device, sample, with_flags(sample.plan, kPlanCheckFinite, 0), place.weights.at("elementary"));
  const Bytes &expected = place.outputs.at("elementary");
  Bytes hostile = sample.input;
  put(hostile, kTokenAt, kVocabulary + random.below(1000));
  std::string texts[2];
  while (!ends) {
    Bytes output(expected.size());
    const PassHandle &pass = random.below(3) == 0 ? infinite : finite;
    const bool is_hostile = random.below(3) == 0, is_infinite = &pass == &infinite;
    const Bytes &input = is_hostile ? hostile : sample.input;
    const int32_t status = is_hostile ? MB_INVALID_INPUT : is_infinite ? MB_NOT_FINITE : MB_OK;
    Result result{MB_OK, ""};
    if (random.below(2) == 0) {
      require(pass.start(input).status == MB_OK, "a start fails");
      result = pass.finish(output, nullptr);
    } else {
      result = pass.run(input, output);
    }
    require(result.status == status, "another status than alone: " + result.text);
    if (status == MB_OK) {
      require(output == expected, "another output than alone of a pass that is checked");
      counts.runs++;
      continue;
    }
    std::string &text = texts[is_hostile];
    if (text.empty()) text = result.text;
    require(!text.empty() && result.text == text, "another text than before: " + result.text);
    counts.failed++;
    sleep_below(random, 2000);
  }
}

// Buffers that come, go and are copied.
void use_buffers(const Place &place, const std::atomic<bool> &ends, uint32_t seed) {
  Random random{seed};
  while (!ends) {
    const uint64_t bytes = 64 + random.below(100000);
    const BufferHandle a(place.device, bytes), b(place.device, bytes);
    Bytes data(bytes);
    for (uint8_t &byte : data) byte = uint8_t(random.below(256));
    a.read(0, bytes);
    succeed("write", [&](char *err, uint64_t cap) { return mb_buffer_write(a.buffer, 0, data.data(), bytes, err, cap); });
    succeed("copy", [&](char *err, uint64_t cap) { return mb_buffer_copy(b.buffer, 0, a.buffer, 0, bytes, err, cap); });
    succeed("fill", [&](char *err, uint64_t cap) { return mb_buffer_fill(a.buffer, 0, bytes, 7, err, cap); });
    require(b.read(0, bytes) == data && a.read(0, bytes) == Bytes(bytes, 7), "other bytes than were written");
    const Result refused = call([&](char *err, uint64_t cap) { return mb_buffer_read(a.buffer, bytes, data.data(), 1, err, cap); });
    const std::string size = std::to_string(bytes);
    require(refused.status == MB_INVALID_ARGUMENT && refused.text.find(size) != std::string::npos, "another text: " + refused.text);
    place.device.memory();
    sleep_below(random, 500);
  }
}

// Short loops on the pool: every chunk is done once, and what it wrote is seen.
void loop(const std::atomic<bool> &ends, uint32_t seed) {
  Random random{seed};
  while (!ends) {
    const int threads = 1 + int(random.below(6));
    const int64_t chunks = random.below(24);
    std::vector<uint32_t> done(uint64_t(chunks), 0);
    std::vector<uint32_t> by(uint64_t(threads) * 32, 0);
    Pool::shared().run(threads, chunks, [&](int64_t chunk, int thread) {
      done[uint64_t(chunk)]++;
      by[uint64_t(thread) * 32]++;
    });
    uint32_t sum = 0;
    for (const uint32_t count : by) sum += count;
    require(done == std::vector<uint32_t>(uint64_t(chunks), 1) && sum == chunks, "a chunk was not done once");
    counts.loops++;
    if (random.below(8) == 0) sleep_below(random, 300);
  }
}

}  // namespace

int main(int count, char **arguments) {
  if (count != 4) return 2;
  const std::string folder = arguments[1];
  const auto times = uint32_t(strtoul(arguments[2], nullptr, 10));
  const auto seed = uint32_t(strtoul(arguments[3], nullptr, 10));
  std::map<std::string, Sample> samples;
  for (const char *name : {"decode", "fused", "elementary", "experts", "towers"}) samples.emplace(name, folder + "/" + name);

  std::vector<std::unique_ptr<Place>> places;
  for (const char *options : {"{\"threads\":3}", "{\"threads\":2,\"level\":\"scalar\"}"}) {
    places.push_back(std::make_unique<Place>(options, folder, samples));
  }
  std::atomic<bool> ends{false};
  std::vector<std::thread> generators, others;
  uint32_t next = seed * 1000;
  for (const auto &place : places) {
    for (const bool is_fast : {false, true}) {
      generators.emplace_back([&place, is_fast, times, own = next++] { Generator(*place, is_fast, own).generate(times); });
    }
    for (const auto &client : {run_samples, open_and_close, fail_runs, use_buffers}) {
      others.emplace_back([&place, &ends, client, own = next++] { client(*place, ends, own); });
    }
  }
  others.emplace_back([&ends, own = next++] { loop(ends, own); });
  for (std::thread &thread : generators) thread.join();
  ends = true;
  for (std::thread &thread : others) thread.join();

  // Nothing is left but the weights that the places share, once runs that nobody waited for have ended.
  for (const auto &place : places) {
    for (int i = 0; i < 1000 && place->device.memory().passes > 0; i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const DeviceHandle::Memory memory = place->device.memory();
    require(memory.passes == 0 && memory.buffers == samples.size() && memory.mapped == 0, "passes or buffers are left");
    require(memory.repacked == 0 && memory.replaced == 0 && memory.scratch == 0, "memory of passes is left");
  }
  printf("{\"runs\":%llu,\"ahead\":%llu,\"instead\":%llu,\"cancelled\":%llu,\"failed\":%llu,\"refused\":%llu,\"compiled\":%llu,"
         "\"loops\":%llu}\n",
         (unsigned long long)counts.runs, (unsigned long long)counts.ahead, (unsigned long long)counts.instead,
         (unsigned long long)counts.cancelled, (unsigned long long)counts.failed, (unsigned long long)counts.refused,
         (unsigned long long)counts.compiled, (unsigned long long)counts.loops);
}
