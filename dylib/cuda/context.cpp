#include "context.h"

namespace mb::cuda {

namespace {

int attribute(DeviceOrdinal ordinal, int which) {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, which, ordinal), "Reading an attribute of the GPU");
  return value;
}

// Results that the driver gives for all later calls of a context as well (CUDA's "sticky" errors): memory faults, failed and
// timed out launches, broken hardware.
bool is_sticky(Result result) {
  switch (result) {
    case 214:  // CUDA_ERROR_ECC_UNCORRECTABLE
    case 220:  // CUDA_ERROR_NVLINK_UNCORRECTABLE
    case 226:  // CUDA_ERROR_CONTAINED
    case 700:  // CUDA_ERROR_ILLEGAL_ADDRESS
    case 702:  // CUDA_ERROR_LAUNCH_TIMEOUT
    case 709:  // CUDA_ERROR_CONTEXT_IS_DESTROYED
    case 710:  // CUDA_ERROR_ASSERT
    case 714:  // CUDA_ERROR_HARDWARE_STACK_ERROR
    case 715:  // CUDA_ERROR_ILLEGAL_INSTRUCTION
    case 716:  // CUDA_ERROR_MISALIGNED_ADDRESS
    case 717:  // CUDA_ERROR_INVALID_ADDRESS_SPACE
    case 718:  // CUDA_ERROR_INVALID_PC
    case 719:  // CUDA_ERROR_LAUNCH_FAILED
    case 999:  // CUDA_ERROR_UNKNOWN
      return true;
    default:
      return false;
  }
}

}  // namespace

Context::Context(int wanted, bool wants_early_start) : ordinal(wanted) {
  const Driver &d = driver();
  int count = 0;
  const Result counted = d.cuDeviceGetCount(&count);
  if (counted == kErrorNoDevice || (counted == kSuccess && count == 0)) {
    fail(MB_NO_DEVICE, "The NVIDIA driver finds no GPU on this machine; use device \"cpu\".");
  }
  mb::cuda::check(counted, "Counting the GPUs");
  if (wanted < 0 || wanted >= count) {
    fail(MB_NO_DEVICE, "There is no GPU %d: the NVIDIA driver finds %d, numbered from 0.", wanted, count);
  }
  char text[256] = "";
  mb::cuda::check(d.cuDeviceGetName(text, sizeof text, ordinal), "Reading the name of the GPU");
  name = text;
  const int major = attribute(ordinal, kComputeMajor), minor = attribute(ordinal, kComputeMinor);
  if (major < 8) {
    fail(MB_NO_DEVICE,
         "The GPU %s has compute capability %d.%d; the kernels need 8.0 (Ampere) at least. Use device \"cpu\".", text, major,
         minor);
  }
  architecture = major >= 9 ? "sm_90" : "sm_80";
  early_start = wants_early_start && major >= 9 && d.cuGraphAddDependencies != nullptr;
  mb::cuda::check(d.cuDriverGetVersion(&driver_version), "Reading the version of the driver");
  size_t bytes = 0;
  mb::cuda::check(d.cuDeviceTotalMem(&bytes, ordinal), "Reading the memory of the GPU");
  memory_bytes = bytes;
  multiprocessors = static_cast<uint32_t>(attribute(ordinal, kMultiprocessors));
  l2_bytes = static_cast<uint32_t>(attribute(ordinal, kL2CacheBytes));
  limits.family = "cuda";
  limits.cores = multiprocessors;
  limits.clusters = major >= 9;
  limits.max_threads = static_cast<uint32_t>(attribute(ordinal, kMaxThreadsPerBlock));
  limits.threadgroup_bytes = static_cast<uint32_t>(attribute(ordinal, kMaxSharedPerBlock));
  limits.most_threadgroup_bytes = static_cast<uint32_t>(attribute(ordinal, kMostSharedPerBlock));
  const int width = attribute(ordinal, kWarpSize);
  if (width != 32) fail(MB_NO_DEVICE, "Warps of the GPU %s have %d threads; the kernels need 32.", text, width);
  mb::cuda::check(d.cuDevicePrimaryCtxRetain(&handle, ordinal), "Making a context on the GPU");
  Result result = d.cuCtxSetCurrent(handle);
  if (result == kSuccess) result = d.cuStreamCreate(&stream, kStreamNonBlocking);
  if (result != kSuccess) {
    d.cuDevicePrimaryCtxRelease(ordinal);
    mb::cuda::check(result, "Making a stream on the GPU");
  }
}

Context::~Context() {
  const Driver &d = driver();
  if (d.cuCtxSetCurrent(handle) == kSuccess) d.cuStreamDestroy(stream);
  d.cuDevicePrimaryCtxRelease(ordinal);
}

void Context::enter() const {
  if (is_lost_) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fail(MB_DEVICE_LOST, "The GPU %s is lost to this process since an earlier failure: %s Start the process again.", name.c_str(),
         lost_.c_str());
  }
  check(driver().cuCtxSetCurrent(handle), "Making the context current");
}

void Context::check(Result result, const char *what) const {
  if (result == kSuccess) return;
  const std::string text = std::string(what) + " failed on the GPU " + name + ": " + result_text(result) + ".";
  if (is_sticky(result)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_lost_) lost_ = text;
    is_lost_ = true;
  }
  if (result == kErrorOutOfMemory) fail(MB_OUT_OF_MEMORY, "%s", text.c_str());
  if (result == kErrorLaunchTimeout) fail(MB_TIMEOUT, "%s", text.c_str());
  fail(is_sticky(result) ? MB_DEVICE_LOST : MB_INTERNAL, "%s", text.c_str());
}

void Context::wait(const char *what) const { check(driver().cuStreamSynchronize(stream), what); }

}  // namespace mb::cuda
