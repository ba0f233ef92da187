#include "residency.h"

#include "context.h"

namespace mb::metal {

Residency::Residency(MTL::Device &device, MTL::CommandQueue &queue, uint64_t limit) : limit_(limit) {
  if (!system_at_least(15)) return;
  const auto descriptor = NS::TransferPtr(MTL::ResidencySetDescriptor::alloc()->init());
  descriptor->setLabel(ns_string("markbase"));
  NS::Error *error = nullptr;
  set_ = NS::TransferPtr(device.newResidencySet(descriptor.get(), &error));
  refused_ = !set_;
  if (set_) queue.addResidencySet(set_.get());
}

Residency::~Residency() {
  if (set_) set_->endResidency();
}

bool Residency::add(const MTL::Buffer &buffer) {
  if (!set_) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t bytes = buffer.length();
  if (bytes_ + bytes > limit_) {
    left_out_ += bytes;
    return false;
  }
  bytes_ += bytes;
  set_->addAllocation(&buffer);
  changed_ = true;
  return true;
}

void Residency::remove(const MTL::Buffer &buffer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bytes_ -= buffer.length();
  set_->removeAllocation(&buffer);
  set_->commit();  // now: the set holds the buffer until then
}

void Residency::commit() {
  if (!set_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!changed_) return;
  set_->commit();
  set_->requestResidency();
  changed_ = false;
}

std::string Residency::info() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!set_) {
    return std::string("{\"set\":false,\"why\":\"") +
           (refused_ ? "the system refused one" : "residency sets need macOS 15") + "\"}";
  }
  return "{\"set\":true,\"bytes\":" + std::to_string(bytes_) + ",\"leftOutBytes\":" + std::to_string(left_out_) + "}";
}

}  // namespace mb::metal
