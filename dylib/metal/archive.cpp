#include "archive.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "../options.h"

namespace mb::metal {

namespace {

NS::SharedPtr<MTL::BinaryArchive> new_archive(MTL::Device &device, const std::string &path, std::string &failure) {
  const auto descriptor = NS::TransferPtr(MTL::BinaryArchiveDescriptor::alloc()->init());
  if (!path.empty()) descriptor->setUrl(NS::URL::fileURLWithPath(ns_string(path)));
  NS::Error *error = nullptr;
  auto archive = NS::TransferPtr(device.newBinaryArchive(descriptor.get(), &error));
  if (!archive) failure = error_text(error);
  return archive;
}

// A name beside `path` that no other thread or process uses.
std::string temporary(const std::string &path) {
  static std::atomic<unsigned> count{0};
  return path + "." + std::to_string(getpid()) + "." + std::to_string(count++) + ".tmp";
}

}  // namespace

Archive::Archive(std::shared_ptr<Context> context, std::string path)
    : context_(std::move(context)), path_(std::move(path)) {
  open();
}

void Archive::open() {
  if (path_.empty()) return;
  std::string failure;
  const bool there = access(path_.c_str(), R_OK) == 0;
  if (there) archive_ = new_archive(*context_->device.get(), path_, failure);
  if (archive_) return note("loaded", "");
  archive_ = new_archive(*context_->device.get(), "", failure);
  note(!archive_ ? "failed" : there ? "rebuilt" : "new", failure);
}

NS::SharedPtr<MTL::BinaryArchive> Archive::current() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return archive_;
}

void Archive::note(const char *state, const std::string &failure) {
  const std::lock_guard<std::mutex> lock(text_mutex_);
  if (state != nullptr) state_ = state;
  if (!failure.empty()) failure_ = failure;
}

NS::SharedPtr<MTL::ComputePipelineState> Archive::make(MTL::ComputePipelineDescriptor &descriptor, bool &from_archive,
                                                       std::string &error) {
  const auto archive = current();
  NS::Error *reason = nullptr;
  if (archive) {
    const NS::Object *archives[] = {archive.get()};
    descriptor.setBinaryArchives(NS::Array::array(archives, 1));
    MTL::ComputePipelineState *found = context_->device->newComputePipelineState(
        &descriptor, MTL::PipelineOptionFailOnBinaryArchiveMiss, nullptr, &reason);
    from_archive = found != nullptr;
    if (from_archive) return NS::TransferPtr(found);
  }
  reason = nullptr;
  auto made = NS::TransferPtr(
      context_->device->newComputePipelineState(&descriptor, MTL::PipelineOptionNone, nullptr, &reason));
  if (!made) {
    error = error_text(reason);
    return made;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (archive_) changed_ = add(descriptor) || changed_;
  return made;
}

bool Archive::add(const MTL::ComputePipelineDescriptor &descriptor) {
  NS::Error *error = nullptr;
  if (archive_->addComputePipelineFunctions(&descriptor, &error)) return true;
  std::string failure = error_text(error);
  note(nullptr, failure);
  if (changed_) return false;
  // An archive from disk that takes no more: what this process uses goes into a new one.
  const auto fresh = new_archive(*context_->device.get(), "", failure);
  if (!fresh || !fresh->addComputePipelineFunctions(&descriptor, &error)) return false;
  archive_ = fresh;
  note("rebuilt", "");
  return true;
}

void Archive::save() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!changed_) return;
  changed_ = false;
  const std::string file = temporary(path_);
  NS::Error *error = nullptr;
  if (!archive_->serializeToURL(NS::URL::fileURLWithPath(ns_string(file)), &error)) {
    note(nullptr, error_text(error));
    unlink(file.c_str());
    unlink(path_.c_str());  // the next process starts a new one
  } else if (rename(file.c_str(), path_.c_str()) != 0) {
    note(nullptr, std::string("The new archive cannot be renamed: ") + strerror(errno));
    unlink(file.c_str());
  }
}

std::string Archive::info() const {
  const std::lock_guard<std::mutex> lock(text_mutex_);
  std::string text = std::string("{\"state\":\"") + state_ + "\"";
  if (!failure_.empty()) text += ",\"failure\":" + json_text(failure_);
  return text + "}";
}

}  // namespace mb::metal
