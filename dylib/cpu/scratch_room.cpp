#include "scratch_room.h"

#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

namespace mb {

namespace {

uint64_t whole_pages(uint64_t bytes) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

// Each op uses its pieces from their starts on, as far as its rows reach: in huge pages a short prompt would take as much as a long one.
ScratchRoom::Mapping::Mapping(uint64_t bytes)
    : data_(static_cast<uint8_t *>(map_zeroed(bytes, kNoHugePages))), bytes_(bytes), mapped_(whole_pages(bytes)) {}

ScratchRoom::Mapping::~Mapping() { munmap(data_, mapped_); }

void ScratchRoom::Mapping::shrink(uint64_t bytes) {
  const uint64_t kept = whole_pages(bytes);
  if (kept < mapped_ && munmap(data_ + kept, mapped_ - kept) == 0) mapped_ = kept;
  bytes_ = bytes;
}

void ScratchRoom::reserve(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!mapping_ || mapping_->bytes() < bytes) {
    auto larger = std::make_shared<Mapping>(bytes);
    memory_.scratch += bytes - (mapping_ ? mapping_->bytes() : 0);
    mapping_ = std::move(larger);  // a run under way keeps the one that it began with
    memory_.note_peak();
  }
  reserved_.insert(bytes);
}

void ScratchRoom::release(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reserved_.erase(reserved_.find(bytes));
  const uint64_t most = reserved_.empty() ? 0 : *reserved_.rbegin();
  if (most == mapping_->bytes()) return;
  memory_.scratch -= mapping_->bytes() - most;
  if (most == 0) mapping_.reset();
  else mapping_->shrink(most);  // a run under way is of a pass that lives, so it needs no more than that
}

std::shared_ptr<ScratchRoom::Mapping> ScratchRoom::current() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return mapping_;
}

}  // namespace mb
