// shape_cache.h: what an executor made of the dispatches of a shape, kept for later runs of that shape. Decoding repeats one shape
// for 256 tokens.
#pragma once
#include <list>
#include <utility>

#include "dispatch.h"

namespace mb::gpu {

// `Made` belongs to the buffers for input and scratch that it was made for, which are told by their generations.
template <class Made>
class ShapeCache {
 public:
  explicit ShapeCache(size_t most) : most_(most) {}

  // From an earlier run, or of make(); lasts until the next call.
  template <class Make>
  Made &find(const Lowering::Shape &shape, uint64_t input_generation, uint64_t scratch_generation, const Make &make) {
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (!(entry->shape == shape)) continue;
      if (entry->input_generation == input_generation && entry->scratch_generation == scratch_generation) {
        entries_.splice(entries_.begin(), entries_, entry);
        return entries_.front().made;
      }
      entries_.erase(entry);
      break;
    }
    entries_.push_front({shape, input_generation, scratch_generation, make()});
    if (entries_.size() > most_) entries_.pop_back();
    return entries_.front().made;
  }

 private:
  struct Entry {
    Lowering::Shape shape;
    uint64_t input_generation, scratch_generation;
    Made made;
  };

  const size_t most_;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace mb::gpu
