#include "shared_pass.h"

#include <cstring>

namespace mb {

namespace {

// Empties a function at the end of its scope.
struct Cleared {
  std::function<void()> &function;
  ~Cleared() { function = nullptr; }
};

// Puts what will most likely be drawn from what a run gave into the input of the next; false if nothing can be.
bool follows(StartedRun &next, const StartedRun &run, const Plan &plan) {
  bool is_put = false;
  if (run.status != MB_OK || run.output.size() != next.drawn_from) return false;
  guarded(nullptr, 0, [&] { is_put = put_guesses(next.input, plan, next.draws, run.output); });
  next.input_bytes = next.input.size() * 4;
  return is_put;
}

// Gives a run that follows to the runner's thread again, if it has other work; false if that runs on.
bool waits_behind_others(const std::shared_ptr<SharedPass> &shared, const std::shared_ptr<StartedRun> &next) {
  Runner &runner = shared->owner->runner();
  const auto again = [&] { runner.give([shared, next]() mutable { run_started(std::move(shared), std::move(next)); }); };
  return runner.has_work() && guarded(nullptr, 0, again) == MB_OK;
}

}  // namespace

void begin_turn(SharedPass &shared, bool is_ahead) {
  const std::lock_guard<std::mutex> lock(shared.mutex);
  shared.is_ahead_running = is_ahead;
  shared.pass->may_hold = is_ahead;
  shared.note_cancelled();
}

void check_cancelled(const Pass &pass) {
  if (pass.cancelled) fail(MB_CANCELLED, "the run was cancelled");
}

RunStatistics run_once(SharedPass &shared, const void *input, uint64_t input_bytes, const Room &room, bool is_ahead,
                       const std::shared_ptr<StartedRun> &before) {
  const auto start = std::chrono::steady_clock::now();
  Pass &running = *shared.pass;
  const Plan &plan = *running.plan;
  const Input checked = check_input(plan, input, input_bytes);
  uint64_t needed = 0;
  for (size_t i = 0; i < plan.outputs.size(); i++) {
    if (selected(checked, i)) needed += live_bytes(plan, *plan.outputs[i], checked);
  }
  uint8_t *to = room(needed);
  std::unique_lock<FairMutex> lock(shared.owner->run, std::try_to_lock);
  if (before && !(lock && running.tells_when_begun)) before->end();
  if (!lock) lock.lock();
  begin_turn(shared, is_ahead);
  check_cancelled(running);
  if (before) running.once_begun = [before] { before->end(); };
  const Cleared cleared{running.once_begun};
  RunStatistics statistics = running.run(checked);
  for (size_t i = 0; i < plan.outputs.size(); i++) {
    const Tensor &from = *plan.outputs[i];
    const uint64_t bytes = live_bytes(plan, from, checked);
    if (!selected(checked, i) || bytes == 0) continue;
    running.read_output(i, to, bytes);
    to += bytes;
  }
  const auto wall = std::chrono::steady_clock::now() - start;
  statistics.wall_ns = static_cast<uint64_t>(std::chrono::nanoseconds(wall).count());
  return statistics;
}

std::shared_ptr<StartedRun> copy_of(const void *input, uint64_t input_bytes) {
  auto run = std::make_shared<StartedRun>();
  run->input.resize((input_bytes + 3) / 4);
  memcpy(run->input.data(), input, input_bytes);
  run->input_bytes = input_bytes;
  return run;
}

void run_started(std::shared_ptr<SharedPass> shared, std::shared_ptr<StartedRun> run) {
  std::shared_ptr<StartedRun> before;
  while (run) {
    run->status = guarded(run->error, sizeof run->error, [&] {
      run->statistics = run_once(*shared, run->input.data(), run->input_bytes, [&](uint64_t needed) {
        run->output.resize(needed);
        return run->output.data();
      }, run->was_ahead, before);
    });
    if (before) before->end();
    std::shared_ptr<StartedRun> next;
    {
      const std::lock_guard<std::mutex> lock(shared->mutex);
      run->is_over = true;
      if (shared->drops) shared->ahead.reset();  // which this is
      shared->drops = false;
      shared->note_cancelled();
      next = std::move(run->next);
      run->next.reset();
      if (next && !follows(*next, *run, *shared->pass->plan)) next.reset();
      shared->ahead = next ? next : shared->ahead;
      if (next) shared->pass->hold();
      if (next && waits_behind_others(shared, next)) next.reset();
    }
    if (!next) shared.reset();  // whoever knows of the end finds the pass released, if it is
    if (!next) run->end();
    before = std::move(run);
    run = std::move(next);
  }
}

}  // namespace mb
