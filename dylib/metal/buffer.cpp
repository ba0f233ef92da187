#include "buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../file.h"

namespace mb::metal {

namespace {

using ull = unsigned long long;

// Page size of Apple silicon: a buffer without a copy begins and ends on such a boundary.
constexpr uint64_t kPageBytes = 16384;

// One command buffer is under way at a time and the host waits for it, so that Metal need not track hazards between them;
// within one the barriers stand where hazards.h says.
constexpr MTL::ResourceOptions kOptions = MTL::ResourceStorageModeShared | MTL::ResourceHazardTrackingModeUntracked;

uint64_t round_up(uint64_t value) { return (value + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

std::shared_ptr<MetalBuffer> MetalBuffer::create(std::shared_ptr<Context> context, uint64_t bytes) {
  const PoolScope pool;
  if (bytes == 0) fail(MB_INVALID_ARGUMENT, "A buffer needs at least one byte.");
  if (bytes > context->max_buffer_bytes) {
    fail(MB_OUT_OF_MEMORY, "A buffer of %llu bytes is larger than the largest of the GPU %s, which is %llu.", ull(bytes),
         context->name.c_str(), ull(context->max_buffer_bytes));
  }
  std::shared_ptr<MetalBuffer> created(new MetalBuffer(context));
  // Metal zeroes a new buffer.
  auto buffer = NS::TransferPtr(context->device->newBuffer(bytes, kOptions));
  if (!buffer) {
    fail(MB_OUT_OF_MEMORY, "The GPU %s gives no buffer of %llu bytes; its recommended working set is %llu bytes.",
         context->name.c_str(), ull(bytes), ull(context->working_set_bytes));
  }
  created->host = static_cast<uint8_t *>(buffer->contents());
  created->size = bytes;
  created->writable = true;
  created->add_piece(0, std::move(buffer));
  return created;
}

std::shared_ptr<MetalBuffer> MetalBuffer::map(std::shared_ptr<Context> context, const std::string &path, uint64_t offset,
                                              uint64_t bytes) {
  const PoolScope pool;
  if (bytes == 0) fail(MB_INVALID_ARGUMENT, "A file mapping needs at least one byte.");
  const File file(path);
  const uint64_t file_bytes = file.check_range(offset, bytes);
  std::shared_ptr<MetalBuffer> mapped(new MetalBuffer(context));
  const uint64_t start = offset / kPageBytes * kPageBytes;
  mapped->lead_ = offset - start;
  mapped->mapping_bytes_ = round_up(mapped->lead_ + bytes);
  // Addresses are reserved first, since a system with smaller pages would not align the mapping to kPageBytes.
  mapped->reserved_bytes_ = mapped->mapping_bytes_ + kPageBytes;
  void *reserved = mmap(nullptr, mapped->reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (reserved == MAP_FAILED) fail(MB_OUT_OF_MEMORY, "No addresses are left to map %s: %s.", path.c_str(), strerror(errno));
  mapped->reserved_ = static_cast<uint8_t *>(reserved);
  const uint64_t address = round_up(reinterpret_cast<uintptr_t>(reserved));
  const uint64_t map_bytes = std::min(mapped->mapping_bytes_, file_bytes - start);
  void *mapping = mmap(reinterpret_cast<void *>(address), map_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file.descriptor(),
                       static_cast<off_t>(start));
  if (mapping == MAP_FAILED) fail(MB_IO, "Cannot map %s: %s.", path.c_str(), strerror(errno));
  mapped->mapping_ = static_cast<uint8_t *>(mapping);
  mapped->host = mapped->mapping_ + mapped->lead_;
  mapped->size = bytes;
  return mapped;
}

MetalBuffer::~MetalBuffer() {
  const PoolScope pool;
  for (const auto &[start, piece] : pieces_) {
    if (piece.resident) context_->residency->remove(*piece.buffer.get());
  }
  pieces_.clear();  // before the bytes below them go
  if (reserved_ != nullptr) munmap(reserved_, reserved_bytes_);
}

void MetalBuffer::read(uint64_t offset, void *destination, uint64_t bytes) { memcpy(destination, host + offset, bytes); }

void MetalBuffer::write(uint64_t offset, const void *source, uint64_t bytes) { memcpy(host + offset, source, bytes); }

void MetalBuffer::fill(uint64_t offset, uint64_t bytes, uint8_t value) { memset(host + offset, value, bytes); }

void MetalBuffer::copy_from(uint64_t offset, Buffer &source, uint64_t source_offset, uint64_t bytes) {
  memcpy(host + offset, source.host + source_offset, bytes);
}

MetalBuffer::View MetalBuffer::view(uint64_t offset, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t begin = lead_ + offset, end = begin + bytes;
  for (const auto &[start, piece] : pieces_) {
    if (start <= begin && end <= start + piece.buffer->length()) return {piece.buffer.get(), begin - start};
  }
  // A new one over the file: from a multiple of half the largest length where that holds the range, so that few are made.
  const uint64_t longest = context_->max_buffer_bytes / kPageBytes * kPageBytes;
  const uint64_t half = std::max(longest / 2 / kPageBytes * kPageBytes, kPageBytes);
  uint64_t start = mapping_bytes_ <= longest ? 0 : begin / half * half;
  if (end > start + longest) start = begin / kPageBytes * kPageBytes;
  if (end > start + longest) {
    fail(MB_OUT_OF_MEMORY, "A tensor of %llu bytes is larger than the largest buffer of the GPU %s, which is %llu bytes.",
         ull(bytes), context_->name.c_str(), ull(context_->max_buffer_bytes));
  }
  const PoolScope pool;
  const uint64_t length = std::min(longest, mapping_bytes_ - start);
  auto buffer = NS::TransferPtr(context_->device->newBuffer(mapping_ + start, length, kOptions, nullptr));
  if (!buffer) {
    fail(MB_OUT_OF_MEMORY, "The GPU %s gives no buffer over %llu bytes of a mapped file; its working set is %llu bytes.",
         context_->name.c_str(), ull(length), ull(context_->working_set_bytes));
  }
  return {add_piece(start, std::move(buffer)).buffer.get(), begin - start};
}

MetalBuffer::Piece &MetalBuffer::add_piece(uint64_t start, NS::SharedPtr<MTL::Buffer> buffer) {
  const bool resident = context_->residency->add(*buffer.get());
  return pieces_[start] = {std::move(buffer), resident};
}

}  // namespace mb::metal
