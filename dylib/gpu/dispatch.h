// dispatch.h: what a GPU executes. lower.cpp turns the ops of a plan into dispatches; the executors in metal/ and cuda/
// run them without knowing any op.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../device.h"

namespace mb::gpu {

// A buffer that a dispatch touches: a plan buffer by index, or one of the executor's own.
enum : uint32_t {
  kInputBuffer = 0xfffffff0,    // the run's input block (input.h), uploaded before the first dispatch; no dispatch writes
                                // it, so its bindings state no bytes
  kScratchBuffer = 0xfffffff1,  // split-attention partials and the like; Lowering::scratch_bytes
};

// One buffer argument: [[buffer(slot)]]. The byte range is what the kernel may touch; barriers are placed by it. Every slot
// that a kernel declares is bound; where an operand is absent, to bytes that the kernel reads anyway.
struct Binding {
  uint32_t slot;
  uint32_t buffer;  // index into Plan::buffers, or a name above
  uint64_t offset, bytes;
  bool writes;
};

// One kernel launch. Argument structs are plain C structs shared with the shader through shaders/*.h and bound
// at params_slot (setBytes in Metal, inline kernel parameters in CUDA).
struct Dispatch {
  std::string family;  // shaders/<family>.metal, one library each
  std::string kernel;  // host name of a template instantiation; there are no function constants
  uint32_t groups[3] = {1, 1, 1};   // threadgroups
  uint32_t threads[3] = {1, 1, 1};  // threads per threadgroup; kernels state theirs (max_total_threads_per_threadgroup)
  uint32_t threadgroup_bytes = 0;   // dynamic memory at [[threadgroup(0)]]; 0: none
  std::vector<Binding> bindings;
  std::vector<uint8_t> params;
  uint32_t params_slot = 0;
  uint32_t op = kNone;  // index of the plan's op, for statistics and messages
};

struct KernelName {
  std::string family, kernel;
  bool operator<(const KernelName &o) const { return family != o.family ? family < o.family : kernel < o.kernel; }
};

// What a device can do; kernels are chosen by it.
struct Limits {
  uint32_t max_threads = 1024;            // per threadgroup; a pipeline may allow fewer
  uint32_t threadgroup_bytes = 32 * 1024; // with which several threadgroups may share a core
  uint32_t most_threadgroup_bytes = 32 * 1024;
  std::string family;                     // "apple7" … "apple10", "cuda"; variant tables are keyed by it
  uint32_t cores = 0;                     // GPU cores (CUDA: multiprocessors), 0 where the system does not say
  bool clusters = false;                  // eight threadgroups may begin together and write into each other's memory
  bool matrix_units = false;              // decode rows take them in fast mode where a weight's format allows
};

// Turns a plan into dispatches. One object per pass; lower() is called for each run with its live counts, since
// grids depend on rows, output rows and the longest context.
class Lowering {
 public:
  Lowering(const Plan &plan, const Limits &limits);  // throws Error(MB_UNSUPPORTED) naming op and format

  // What grids depend on; equal shapes give equal dispatches, so executors may cache by it. Rows of class decode come
  // first: rows [0, decode_rows) and out rows [0, decode_out_rows), the rest are of class prefill.
  struct Shape {
    uint32_t rows, out_rows, sequences;
    uint32_t decode_rows, decode_out_rows;
    uint32_t context_blocks;  // 256-key blocks that the longest row reads
    bool verifies;            // a sequence has several decode rows, which must see each other's keys and values
    bool operator==(const Shape &o) const {
      return rows == o.rows && out_rows == o.out_rows && sequences == o.sequences && decode_rows == o.decode_rows &&
             decode_out_rows == o.decode_out_rows && context_blocks == o.context_blocks && verifies == o.verifies;
    }
  };
  // Throws Error(MB_INVALID_INPUT) where a prefill row precedes a decode row.
  Shape shape(const Input &input) const;
  std::vector<Dispatch> lower(const Shape &shape) const;

  uint64_t scratch_bytes() const { return scratch_bytes_; }  // the most that any shape within the plan's limits needs

 private:
  const Plan &plan_;
  Limits limits_;
  uint64_t scratch_bytes_ = 0;
};

}  // namespace mb::gpu
