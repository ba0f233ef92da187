#include "runner.h"

#include <chrono>
#include <thread>

#include "threads.h"

namespace mb {

namespace {

// Longer than what lies between two steps of a generation, short enough to leave the core to others. An only core is left at once.
std::chrono::microseconds awake() {
  return std::chrono::microseconds(std::thread::hardware_concurrency() == 1 ? 0 : 500);
}

}  // namespace

Runner::Runner() : state_(std::make_shared<State>()) {
  keep_library_loaded();
  std::thread([state = state_] { serve(*state); }).detach();
}

Runner::~Runner() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->ends = true;
  state_->changes++;
  state_->wake.notify_one();
}

void Runner::give(std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->queue.push_back(std::move(work));
  state_->changes++;
  if (state_->sleeps) state_->wake.notify_one();
}

bool Runner::has_work() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return !state_->queue.empty();
}

void Runner::serve(State &state) {
  const auto awake_for = awake();
  uint64_t seen = 0;
  for (;;) {
    const auto end = std::chrono::steady_clock::now() + awake_for;
    while (state.changes.load(std::memory_order_acquire) == seen && std::chrono::steady_clock::now() < end) {
      for (int i = 0; i < 16 && state.changes.load(std::memory_order_acquire) == seen; i++) pause();
    }
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> lock(state.mutex);
      state.sleeps = true;
      state.wake.wait(lock, [&] { return !state.queue.empty() || state.ends; });
      state.sleeps = false;
      if (state.queue.empty()) return;
      work = std::move(state.queue.front());
      state.queue.pop_front();
      // Work that was given meanwhile is a change that was not seen.
      if (state.queue.empty()) seen = state.changes;
    }
    work();
  }
}

}  // namespace mb
