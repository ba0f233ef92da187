#include "pool.h"

#include <sched.h>

#include <chrono>
#include <thread>

#include "../threads.h"

namespace mb {

namespace {

// Long enough to bridge the serial work between two loops of a forward, short enough to leave the core to others.
constexpr auto kSpin = std::chrono::microseconds(20);

// Spins until ready() or until kSpin is over; returns whether it became ready.
template <class Ready>
bool spin(const Ready &ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; i++) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace

Pool &Pool::shared() {
  static Pool *pool = new Pool;  // never destroyed: its threads may outlive static destructors
  return *pool;
}

int Pool::core_count() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count ? static_cast<int>(count) : 1;
}

void Pool::start_workers(int count) {
  if (workers_ == 0) keep_library_loaded();
  for (; workers_ < count; workers_++) {
    std::thread([this, thread = workers_ + 1] { work(thread); }).detach();
  }
}

void Pool::claim_chunks(int thread) {
  for (int i = 0; i < threads_; i++) {
    Span &span = spans_[(thread + i) % threads_];
    if (i > 0 && span.next.load(std::memory_order_relaxed) >= span.last) continue;  // leaves the line where it is
    for (;;) {
      const int64_t chunk = span.next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= span.last) break;
      call_(context_, chunk, thread);
    }
  }
}

void Pool::run_shared(int threads, int64_t chunks, Call call, const void *context) {
  std::lock_guard<std::mutex> lock(one_loop_);
  if (threads > kMaxThreads) threads = kMaxThreads;
  start_workers(threads - 1);
  call_ = call;
  context_ = context;
  threads_ = threads;
  for (int i = 0; i < threads; i++) {
    spans_[i].next.store(chunks * i / threads, std::memory_order_relaxed);
    spans_[i].last = chunks * (i + 1) / threads;
  }
  if (++loops_ == 0) loops_ = 1;
  open_.store(loops_);  // sequentially consistent, as all that follows: a worker that enters late must see it closed
  if (sleeping_.load() > 0) {
    std::lock_guard<std::mutex> sleepers(sleep_);
    wake_.notify_all();
  }
  claim_chunks(0);
  // All chunks are claimed. Whoever has not entered stays out; those inside finish what they hold.
  open_.store(0);
  const auto empty = [this] { return inside_.load() == 0; };
  if (spin(empty)) return;
  std::unique_lock<std::mutex> waiting(sleep_);
  caller_sleeps_.store(true);
  done_.wait(waiting, empty);
  caller_sleeps_.store(false);
}

void Pool::work(int thread) {
  uint32_t seen = 0;
  const auto ready = [&] {
    const uint32_t loop = open_.load();
    return loop != 0 && loop != seen;
  };
  for (;;) {
    if (!spin(ready)) {
      std::unique_lock<std::mutex> lock(sleep_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, ready);
      sleeping_.fetch_sub(1);
    }
    inside_.fetch_add(1);
    const uint32_t loop = open_.load();
    if (loop != 0) {
      seen = loop;
      if (thread < threads_) claim_chunks(thread);
    }
    if (inside_.fetch_sub(1) == 1 && caller_sleeps_.load()) {
      std::lock_guard<std::mutex> lock(sleep_);
      done_.notify_one();
    }
  }
}

}  // namespace mb
