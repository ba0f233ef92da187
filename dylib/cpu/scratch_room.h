// scratch_room.h: the memory that ops of a device's passes use while they run. Runs on a device take turns, so all its passes share
// it: it is as large as the pass that needs most.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

#include "../device.h"

namespace mb {

class ScratchRoom {
 public:
  explicit ScratchRoom(Memory &memory) : memory_(memory) {}
  ScratchRoom(const ScratchRoom &) = delete;
  ScratchRoom &operator=(const ScratchRoom &) = delete;

  class Mapping;

  // A pass reserves what it needs for its lifetime. Throws Error(MB_OUT_OF_MEMORY).
  void reserve(uint64_t bytes);
  void release(uint64_t bytes);

  // Has room for every reservation; nothing in it outlives a run, which keeps the pointer until it ends.
  std::shared_ptr<Mapping> current() const;

 private:
  Memory &memory_;
  mutable std::mutex mutex_;
  std::multiset<uint64_t> reserved_;
  std::shared_ptr<Mapping> mapping_;
};

class ScratchRoom::Mapping {
 public:
  explicit Mapping(uint64_t bytes);
  ~Mapping();
  Mapping(const Mapping &) = delete;
  Mapping &operator=(const Mapping &) = delete;

  uint8_t *data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  void shrink(uint64_t bytes);  // gives back what lies behind, apart from the rest of a page

 private:
  uint8_t *const data_;
  uint64_t bytes_, mapped_;
};

}  // namespace mb
