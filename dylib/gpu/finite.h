// finite.h: the debug check behind kPlanCheckFinite.
#pragma once
#include <vector>

#include "../device.h"

namespace mb::gpu {

// Looks for NaN and Inf in the live rows of what the op wrote; the device must be idle. Throws Error(MB_NOT_FINITE)
// that names op, layer and row.
void check_finite(const Plan &plan, const Op &op, const Input &input);

// Runs an executor's steps op by op and looks at what each op wrote. run(begin, end) runs a range of them and waits.
template <class Step, class Run>
RunStatistics run_checked(const Plan &plan, const Input &input, const std::vector<Step> &steps, const Run &run) {
  RunStatistics sum;
  for (size_t begin = 0; begin < steps.size();) {
    const uint32_t op = steps[begin].op;
    size_t end = begin;
    while (end < steps.size() && steps[end].op == op) end++;
    const RunStatistics part = run(begin, end);
    sum.device_ns += part.device_ns;
    sum.dispatches += part.dispatches;
    sum.command_buffers += part.command_buffers;
    sum.waits += part.waits;
    if (op < plan.ops.size()) check_finite(plan, plan.ops[op], input);
    begin = end;
  }
  return sum;
}

}  // namespace mb::gpu
