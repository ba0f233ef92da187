// hazards.h: which dispatches must wait for which. Two conflict where their bytes overlap and one of them writes: a write met
// by a read or write (RAW, WAW), or a read met by a write (WAR).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace mb::gpu {

// Bytes [begin, end) of a resource; none where both are equal.
struct Access {
  uint64_t resource;
  uint64_t begin, end;
  bool writes;
};

inline bool conflict(const Access &a, const Access &b) {
  return a.resource == b.resource && (a.writes || b.writes) && std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

// For an encoder whose dispatches run in any order between two barriers.
class Barriers {
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
        if (conflict(a, b)) return true;
      }
    }
    return false;
  }

  std::vector<Access> open_;  // since the last barrier
};

// For a graph of dispatches: the fewest edges that keep every pair of conflicting dispatches in order.
class Dependencies {
 public:
  // Takes the next dispatch's accesses; returns the earlier dispatches, by number and ascending, that it must follow directly.
  std::vector<size_t> next(const std::vector<Access> &accesses) {
    const size_t self = ancestors_.size();
    std::vector<size_t> before;
    for (const Access &a : accesses) {
      for (const Open &open : open_[a.resource]) {
        if (conflict(a, open.access)) before.push_back(open.dispatch);
      }
    }
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    std::vector<bool> ancestors(self);
    std::vector<size_t> direct;
    for (auto latest = before.rbegin(); latest != before.rend(); ++latest) {
      if (ancestors[*latest]) continue;  // one of those taken follows it already
      direct.push_back(*latest);
      ancestors[*latest] = true;
      for (size_t i = 0; i < *latest; i++) ancestors[i] = ancestors[i] || ancestors_[*latest][i];
    }
    std::reverse(direct.begin(), direct.end());
    for (const Access &a : accesses) {
      std::vector<Open> &list = open_[a.resource];
      // What lies inside this write is ordered before it, so later dispatches need look at the write only.
      const auto hidden = [&](const Open &open) {
        return a.writes && open.dispatch != self && a.begin <= open.access.begin && open.access.end <= a.end;
      };
      list.erase(std::remove_if(list.begin(), list.end(), hidden), list.end());
      list.push_back({self, a});
    }
    ancestors_.push_back(std::move(ancestors));
    return direct;
  }

 private:
  struct Open {
    size_t dispatch;
    Access access;
  };
  std::map<uint64_t, std::vector<Open>> open_;    // by resource: accesses that no later write covers
  std::vector<std::vector<bool>> ancestors_;      // of each dispatch: those that it follows, directly or not
};

}  // namespace mb::gpu
