// The implementation of metal-cpp's wrappers is in this file, once for the library.
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#include "context.h"

namespace mb::metal {

namespace {

constexpr long kLeastFamily = MTL::GPUFamilyApple7;  // M1: simdgroup matrices
constexpr long kLastFamily = 1016;                   // families that may come are named by their number

// "apple7" and so on, the highest that the GPU belongs to; empty where it is below kLeastFamily.
std::string family_name(MTL::Device &device) {
  for (long family = kLastFamily; family >= kLeastFamily; family--) {
    if (device.supportsFamily(static_cast<MTL::GPUFamily>(family))) return "apple" + std::to_string(family - 1000);
  }
  return "";
}

}  // namespace

std::string error_text(const NS::Error *error) {
  if (error == nullptr) return "no reason was given";
  const NS::String *description = error->localizedDescription();
  const NS::String *domain = error->domain();
  return std::string(description ? description->utf8String() : "no description") + " (" +
         (domain ? domain->utf8String() : "no domain") + " " + std::to_string(error->code()) + ")";
}

bool system_at_least(long major) {
  return NS::ProcessInfo::processInfo()->isOperatingSystemAtLeastVersion(NS::OperatingSystemVersion{major, 0, 0});
}

Context::Context() {
  const PoolScope pool;
  device = NS::TransferPtr(MTL::CreateSystemDefaultDevice());
  if (!device) fail(MB_NO_DEVICE, "This machine has no Metal device; use device \"cpu\".");
  name = device->name()->utf8String();
  if (!system_at_least(13)) fail(MB_NO_DEVICE, "The metal device needs macOS 13 or later; use device \"cpu\".");
  limits.family = family_name(*device.get());
  if (limits.family.empty()) {
    fail(MB_NO_DEVICE, "The GPU %s is not an Apple GPU of the M1's family (apple7) or later; use device \"cpu\".",
         name.c_str());
  }
  const MTL::Size threads = device->maxThreadsPerThreadgroup();
  limits.max_threads = static_cast<uint32_t>(threads.width);
  limits.threadgroup_bytes = static_cast<uint32_t>(device->maxThreadgroupMemoryLength());
  limits.most_threadgroup_bytes = limits.threadgroup_bytes;
  max_buffer_bytes = device->maxBufferLength();
  working_set_bytes = device->recommendedMaxWorkingSetSize();
  system = NS::ProcessInfo::processInfo()->operatingSystemVersionString()->utf8String();
  queue = NS::TransferPtr(device->newCommandQueue());
  if (!queue) fail(MB_NO_DEVICE, "The GPU %s gives no command queue; use device \"cpu\".", name.c_str());
  residency = std::make_unique<Residency>(*device.get(), *queue.get(), working_set_bytes);
}

}  // namespace mb::metal
