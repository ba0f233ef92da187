// parallel.h: a loop on several threads, for making kernels ready.
#pragma once
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace mb::gpu {

// Calls work(0) … work(count - 1) on `most_threads` threads at most, this one among them; throws the first failure after all
// have ended.
template <class Work>
void in_parallel(size_t count, unsigned most_threads, const Work &work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto worker = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    }
  };
  const size_t most = std::min<size_t>({count, most_threads, std::max(1u, std::thread::hardware_concurrency())});
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < most; i++) threads.emplace_back(worker);
  } catch (const std::system_error &) {  // no more threads: those that are there do the work
  }
  worker();
  for (std::thread &thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace mb::gpu
