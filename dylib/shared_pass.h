// shared_pass.h: a pass and its device as all that refer to them share them, and the runs of a pass that were started, of which one may
// begin as soon as another ends.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "guess.h"
#include "runner.h"
#include "status.h"

namespace mb {

// Whoever asked first gets it next. A plain mutex is taken again by the thread that lets go of it, as runs that follow one another
// do, before one that waits has woken up.
class FairMutex {
 public:
  void lock() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t own = asked_++;
    changed_.wait(lock, [&] { return own == served_; });
  }
  bool try_lock() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (asked_ != served_) return false;
    asked_++;
    return true;
  }
  void unlock() {
    const std::lock_guard<std::mutex> lock(mutex_);
    served_++;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t asked_ = 0, served_ = 0;  // the holder's number is `served_`, if more were asked
};

// A device and what its users share: it lives as long as any handle, buffer or pass of it.
struct SharedDevice {
  std::shared_ptr<Device> device;
  FairMutex run;  // held by the one run under way

  Runner &runner() {
    const std::lock_guard<std::mutex> lock(runner_mutex_);
    if (!runner_) runner_ = std::make_unique<Runner>();
    return *runner_;
  }

 private:
  std::mutex runner_mutex_;
  std::unique_ptr<Runner> runner_;  // made when a run is started
};

// A run that was started, with memory of its own: the caller's may be gone before it ends.
struct StartedRun {
  std::vector<uint32_t> input;  // words, as input blocks are made of
  uint64_t input_bytes = 0;
  std::vector<uint8_t> output;
  RunStatistics statistics;
  int32_t status = MB_OK;
  char error[1024] = "";
  Draws draws;                // of a run that follows another: how each row's token is drawn from the other's outputs
  uint64_t drawn_from = 0;    // bytes of these
  bool was_ahead = false;     // it was begun before the caller asked for it
  bool is_instead = false;    // another was begun ahead in its place

  // Guarded by SharedPass::mutex.
  bool is_over = false;              // nothing can be made to follow it any more
  std::shared_ptr<StartedRun> next;  // begins when this ends

  bool has_ended() const { return ended_.load(std::memory_order_acquire); }
  // Nothing but this is touched by the runner's thread from here on.
  void end() {
    if (has_ended()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return has_ended(); });
  }
  // At most so long; whether it has ended.
  bool wait(std::chrono::nanoseconds most) {
    if (most.count() == 0) return has_ended();
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, most, [&] { return has_ended(); });
  }

 private:
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};

struct SharedPass {
  std::shared_ptr<SharedDevice> owner;
  std::unique_ptr<Pass> pass;  // destroyed before its device

  // What follows is guarded by `mutex`.
  std::mutex mutex;
  std::shared_ptr<StartedRun> started;  // and not finished
  std::shared_ptr<StartedRun> ahead;    // has begun after another, and nobody has asked for it yet
  bool is_cancelled = false;            // by mb_pass_cancel
  bool drops = false;                   // `ahead` is to end: nobody will ask for it
  bool is_ahead_running = false;        // the run that has the device, if it is of this pass, was begun ahead

  // Ends what was begun ahead; returns it if it is still under way.
  std::shared_ptr<StartedRun> drop_ahead() {
    if (started) started->next.reset();
    if (ahead && ahead->is_over) ahead.reset();
    if (ahead) drops = true;
    note_cancelled();
    pass->let_go();
    return ahead;
  }
  // A run that is dropped does not take others of its pass with it.
  void note_cancelled() { pass->cancelled = is_cancelled || (drops && is_ahead_running); }

  ~SharedPass() {
    pass.reset();
    owner->device->memory.passes--;
  }
};

// Says whose run has the device; whoever says so holds the device's lock.
void begin_turn(SharedPass &shared, bool is_ahead);

// Throws Error where the pass was cancelled.
void check_cancelled(const Pass &pass);

using Room = std::function<uint8_t *(uint64_t bytes)>;
// Runs once. `room(bytes)` gives the bytes that the selected outputs go to, one after another. `is_ahead`: it was begun ahead.
// `before`: the run before this one, if its end is still to be told: waking the caller takes the device's time, so a run that can
// tells it once its ops are under way.
RunStatistics run_once(SharedPass &shared, const void *input, uint64_t input_bytes, const Room &room, bool is_ahead = false,
                       const std::shared_ptr<StartedRun> &before = nullptr);

// A run with a copy of the input block.
std::shared_ptr<StartedRun> copy_of(const void *input, uint64_t input_bytes);

// Runs what was started, and what was made to follow it, on the runner's thread. What follows waits behind what others have started on
// the device meanwhile.
void run_started(std::shared_ptr<SharedPass> shared, std::shared_ptr<StartedRun> run);

}  // namespace mb
