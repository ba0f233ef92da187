#include "scratch.h"

namespace mb::metal {

void SharedScratch::reserve(uint64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!buffer_ || buffer_->size < bytes) set(MetalBuffer::create(context_, bytes));
  reserved_.insert(bytes);
}

void SharedScratch::release(uint64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  reserved_.erase(reserved_.find(bytes));
  if (reserved_.empty()) set(nullptr);
}

SharedScratch::Current SharedScratch::current() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {buffer_, generation_};
}

void SharedScratch::set(std::shared_ptr<MetalBuffer> buffer) {
  if (buffer_) memory_.scratch -= buffer_->size;
  buffer_ = std::move(buffer);
  generation_++;
  if (buffer_) memory_.scratch += buffer_->size;
  memory_.note_peak();
}

}  // namespace mb::metal
