// pool.h: the one thread pool of the process.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace mb {

// Runs a loop's iterations ("chunks") on several threads. Each thread has a span of chunks that follow each other, so that it reads
// memory in one stream; chunks are claimed one by one, and whoever is done with its own span claims from others', so that a
// thread whose core is busy with something else takes fewer and holds nobody up. The caller works too. Waiting threads spin for some
// microseconds and then sleep: a pool that only spins collapses when another process needs the cores.
class Pool {
 public:
  static Pool &shared();
  static int core_count();  // threads worth having: the cores this process may use

  // Calls body(chunk, thread) for every chunk in [0, chunks), thread in [0, threads), from at most `threads` threads at
  // once; returns when all are done. What the chunks wrote is visible to the caller then. body must not throw.
  template <class Body>
  void run(int threads, int64_t chunks, const Body &body) {
    if (threads <= 1 || chunks <= 1) {
      for (int64_t chunk = 0; chunk < chunks; chunk++) body(chunk, 0);
      return;
    }
    run_shared(threads, chunks, [](const void *context, int64_t chunk, int thread) {
      (*static_cast<const Body *>(context))(chunk, thread);
    }, &body);
  }

 private:
  static constexpr int kMaxThreads = 256;
  struct alignas(128) Span {
    std::atomic<int64_t> next{0};  // first chunk not claimed
    int64_t last = 0;
  };

  using Call = void (*)(const void *context, int64_t chunk, int thread);

  void run_shared(int threads, int64_t chunks, Call call, const void *context);
  void start_workers(int count);
  void work(int thread);
  void claim_chunks(int thread);

  std::mutex one_loop_;  // held by the caller whose loop runs
  int workers_ = 0;      // guarded by one_loop_

  // The running loop. Written only while it is closed and no worker is inside.
  Call call_ = nullptr;
  const void *context_ = nullptr;
  int threads_ = 0;
  Span spans_[kMaxThreads];  // of the running loop's threads

  alignas(128) std::atomic<uint32_t> open_{0};  // number of the open loop, 0 while none is
  alignas(128) std::atomic<int> inside_{0};     // workers that may touch the loop
  alignas(128) std::atomic<int> sleeping_{0};   // workers that wait for `wake_`
  uint32_t loops_ = 0;
  std::mutex sleep_;
  std::condition_variable wake_;                // a loop was opened
  std::atomic<bool> caller_sleeps_{false};      // the caller waits for `done_`
  std::condition_variable done_;                // no worker is inside
};

}  // namespace mb
