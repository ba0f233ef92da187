// interleaved.h: weights of a plan in the layout of band_form.h, made when a pass is compiled.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "../device.h"
#include "kernels.h"

namespace mb {

// The interleaved weights of a device: each is made once for all passes that are alive; its bytes must not change while one of them
// is (mb_pass_compile says so).
class Interleaved {
 public:
  Interleaved(const Kernels &kernels, int threads, Memory &memory) : kernels_(kernels), threads_(threads), memory_(memory) {}

  struct Mapping;
  struct Copy;
  // Gives the weights of fast linear ops their interleaved places. The pass holds what is returned as long as it runs. Does nothing in
  // exact mode, for plans that say so (kPlanInPlace), and where all copies of the process would take more than half of the memory that
  // it may have (mapped files cost none), or the system gives none: mb_pass_info's repackedBytes tells.
  std::vector<std::shared_ptr<Copy>> interleave(Plan &plan);

 private:
  struct Entry {
    Weight weight;  // stays where it is while a pass holds the copy, since that holds the buffers too
    std::weak_ptr<Copy> copy;
  };

  std::shared_ptr<Copy> find(const Weight &w);
  std::vector<std::shared_ptr<Copy>> make_missing(const Plan &plan);
  void fill(const Plan &plan, const Tensor &tensor, const Weight &w, uint8_t *to);

  const Kernels &kernels_;
  const int threads_;
  Memory &memory_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

// Bytes of all of them.
uint64_t interleaved_bytes(const std::vector<std::shared_ptr<Interleaved::Copy>> &copies);

}  // namespace mb
