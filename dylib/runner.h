// runner.h: a thread of the library's own that stays awake for a while after each piece of work, since waking a
// thread up takes some 50 us.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace mb {

class Runner {
 public:
  Runner();
  // The thread ends once it has done what it was given; nobody waits for it.
  ~Runner();
  Runner(const Runner &) = delete;
  Runner &operator=(const Runner &) = delete;

  // Has the thread call `work`, which must not throw, after all that was given before. It may destroy this runner.
  void give(std::function<void()> work);

  // Whether work was given that the thread has not begun.
  bool has_work();

 private:
  struct State {
    std::mutex mutex;  // of `queue`
    std::condition_variable wake;
    std::deque<std::function<void()>> queue;
    std::atomic<uint64_t> changes{0};  // of `queue` and `ends`
    std::atomic<bool> ends{false};
    bool sleeps = false;
  };
  static void serve(State &state);

  const std::shared_ptr<State> state_;  // the thread's too
};

}  // namespace mb
