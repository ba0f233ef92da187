// hazards.h: where a concurrent encoder needs a barrier. Dispatches run in any order between two barriers, so one is placed
// before a dispatch whose bytes conflict with those of an earlier one since the last barrier: a write met by a read
// or write (RAW, WAW), or a read met by a write (WAR).
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace mb::metal {

// Bytes [begin, end) of a resource; none where both are equal.
struct Access {
  uint64_t resource;
  uint64_t begin, end;
  bool writes;
};

class Hazards {
 public:
  // Takes the next dispatch's accesses; returns whether a barrier must stand before it.
  bool next(const std::vector<Access> &accesses) {
    const bool barrier = conflicts(accesses);
    if (barrier) open_.clear();
    open_.insert(open_.end(), accesses.begin(), accesses.end());
    return barrier;
  }

 private:
  bool conflicts(const std::vector<Access> &accesses) const {
    for (const Access &a : accesses) {
      for (const Access &b : open_) {
        if (a.resource != b.resource || !(a.writes || b.writes)) continue;
        if (std::max(a.begin, b.begin) < std::min(a.end, b.end)) return true;
      }
    }
    return false;
  }

  std::vector<Access> open_;  // since the last barrier
};

}  // namespace mb::metal
