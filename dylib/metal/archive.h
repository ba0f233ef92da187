// archive.h: compiled kernels of one family on disk. MTLBinaryArchive keeps what the driver's back end made; the front end
// (newLibrary) runs in each process anyway.
#pragma once
#include "context.h"

namespace mb::metal {

class Archive {
 public:
  // `path`: empty for none. A file there that this system does not take is replaced at the next save.
  Archive(std::shared_ptr<Context> context, std::string path);

  // Makes a pipeline, from the archive where it is there; `from_archive` tells. Null on failure, with `error` set.
  NS::SharedPtr<MTL::ComputePipelineState> make(MTL::ComputePipelineDescriptor &descriptor, bool &from_archive,
                                                std::string &error);
  // Writes what was added since the last save: to a file of another name, which then takes the place of the old one, so that
  // other processes see a whole archive. Failures cost time in the next process and nothing else: they are told, not thrown.
  void save();

  std::string info() const;  // JSON

 private:
  void open();
  NS::SharedPtr<MTL::BinaryArchive> current();
  void note(const char *state, const std::string &failure);
  // The caller holds mutex_.
  bool add(const MTL::ComputePipelineDescriptor &descriptor);

  const std::shared_ptr<Context> context_;
  const std::string path_;
  std::mutex mutex_;  // of what follows
  NS::SharedPtr<MTL::BinaryArchive> archive_;  // null: none
  bool changed_ = false;
  mutable std::mutex text_mutex_;  // of what info() tells, since mutex_ is held for long
  const char *state_ = "none";
  std::string failure_;
};

}  // namespace mb::metal
