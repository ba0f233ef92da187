// Compares Barriers with its definition on random lists of dispatches; prints what it saw and ends with 0 where they agree.
#include "../../../dylib/gpu/hazards.h"

#include <cstdio>
#include <random>
#include <string>

using mb::gpu::Access;
using mb::gpu::Barriers;
using List = std::vector<std::vector<Access>>;

// Two dispatches may not run at once.
bool conflict_of(const std::vector<Access> &a, const std::vector<Access> &b) {
  for (const Access &x : a) {
    for (const Access &y : b) {
      if (x.resource != y.resource || !(x.writes || y.writes)) continue;
      for (uint64_t byte = x.begin; byte < x.end; byte++) {
        if (byte >= y.begin && byte < y.end) return true;
      }
    }
  }
  return false;
}

List random_list(std::mt19937 &random) {
  List list(1 + random() % 20);
  for (auto &dispatch : list) {
    dispatch.resize(random() % 4);
    for (Access &access : dispatch) {
      access.resource = random() % 3;
      access.begin = random() % 40;
      access.end = access.begin + random() % 12;  // may be empty
      access.writes = random() % 3 == 0;
    }
  }
  return list;
}

int main() {
  std::mt19937 random(1);
  size_t dispatches = 0, barriers = 0, raw = 0, war = 0, waw = 0;
  for (int round = 0; round < 20000; round++) {
    const List list = random_list(random);
    Barriers tracker;
    size_t last = 0;  // first dispatch after the last barrier
    for (size_t i = 0; i < list.size(); i++) {
      bool needed = false;
      for (size_t j = last; j < i; j++) needed = needed || conflict_of(list[j], list[i]);
      const bool barrier = tracker.next(list[i]);
      if (barrier != needed) {
        printf("round %d: before dispatch %zu a barrier is %s but was %s\n", round, i, needed ? "needed" : "not needed",
               barrier ? "placed" : "left out");
        return 1;
      }
      for (size_t j = last; j < i; j++) {
        for (const Access &x : list[j]) {
          for (const Access &y : list[i]) {
            if (!conflict_of({x}, {y})) continue;
            raw += x.writes && !y.writes;
            war += !x.writes && y.writes;
            waw += x.writes && y.writes;
          }
        }
      }
      if (barrier) last = i;
      dispatches++;
      barriers += barrier;
    }
  }
  printf("{\"dispatches\":%zu,\"barriers\":%zu,\"raw\":%zu,\"war\":%zu,\"waw\":%zu}\n", dispatches, barriers, raw, war, waw);
  return 0;
}
