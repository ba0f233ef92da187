// buffer.h: bytes that the GPU and the host share.
#pragma once
#include <map>

#include "context.h"

namespace mb::metal {

// Storage is shared for every kind: on unified memory a private copy would only cost a second allocation, and the host
// reads and writes in place between runs. A mapped file is not copied either: Metal buffers are laid over its pages. Where
// the file is longer than the largest buffer, several of them overlap, so that each binding fits into one.
class MetalBuffer final : public Buffer {
 public:
  static std::shared_ptr<MetalBuffer> create(std::shared_ptr<Context> context, uint64_t bytes);
  static std::shared_ptr<MetalBuffer> map(std::shared_ptr<Context> context, const std::string &path, uint64_t offset,
                                          uint64_t bytes);
  ~MetalBuffer() override;
  MetalBuffer(const MetalBuffer &) = delete;
  MetalBuffer &operator=(const MetalBuffer &) = delete;

  void read(uint64_t offset, void *destination, uint64_t bytes) override;
  void write(uint64_t offset, const void *source, uint64_t bytes) override;
  void fill(uint64_t offset, uint64_t bytes, uint8_t value) override;
  void copy_from(uint64_t offset, Buffer &source, uint64_t source_offset, uint64_t bytes) override;

  struct View {
    MTL::Buffer *buffer;  // lives as long as this object
    uint64_t offset;      // where the asked range begins in it
  };
  // The Metal buffer that holds bytes [offset, offset + bytes). Throws Error(MB_OUT_OF_MEMORY) where none can.
  View view(uint64_t offset, uint64_t bytes);

 private:
  explicit MetalBuffer(std::shared_ptr<Context> context) : context_(std::move(context)) {}

  struct Piece {
    NS::SharedPtr<MTL::Buffer> buffer;
    bool resident;
  };
  Piece &add_piece(uint64_t start, NS::SharedPtr<MTL::Buffer> buffer);

  const std::shared_ptr<Context> context_;
  std::mutex mutex_;
  std::map<uint64_t, Piece> pieces_;  // by their start in the mapping; of a created buffer: one, at 0
  uint8_t *reserved_ = nullptr;       // a mapped file: the reserved addresses and their length
  uint64_t reserved_bytes_ = 0;
  uint8_t *mapping_ = nullptr;  // aligned to kPageBytes
  uint64_t mapping_bytes_ = 0;  // a multiple of kPageBytes
  uint64_t lead_ = 0;           // bytes of the mapping before this buffer's first
};

}  // namespace mb::metal
