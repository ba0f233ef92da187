#include "driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

namespace mb::cuda {

namespace {

constexpr int kLeastVersion = 12000;  // CUDA 12.0: what the PTX asks for, and cuGraphInstantiateWithFlags

void *open_library() {
  const char *named = getenv("MARKBASE_LIBCUDA");
  const char *name = named != nullptr && *named != 0 ? named : "libcuda.so.1";
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char *reason = dlerror();
    fail(MB_NO_DEVICE,
         "There is no NVIDIA driver on this machine: %s (%s). Install the NVIDIA driver (580 or later is best), or use device "
         "\"cpu\".",
         name, reason != nullptr ? reason : "no reason given");
  }
  return library;
}

template <class Function>
void find(void *library, const char *name, Function *&function) {
  function = reinterpret_cast<Function *>(dlsym(library, name));
  if (function == nullptr) {
    fail(MB_NO_DEVICE,
         "The NVIDIA driver on this machine has no function %s; it is older than CUDA 12. Update it, or use device \"cpu\".",
         name);
  }
}

Driver open_driver() {
  void *library = open_library();  // stays open: its threads and handlers end with the process
  Driver d{};
  find(library, "cuInit", d.cuInit);
  find(library, "cuDriverGetVersion", d.cuDriverGetVersion);
  find(library, "cuGetErrorName", d.cuGetErrorName);
  find(library, "cuGetErrorString", d.cuGetErrorString);
  find(library, "cuDeviceGetCount", d.cuDeviceGetCount);
  find(library, "cuDeviceGet", d.cuDeviceGet);
  find(library, "cuDeviceGetName", d.cuDeviceGetName);
  find(library, "cuDeviceGetAttribute", d.cuDeviceGetAttribute);
  find(library, "cuDeviceTotalMem_v2", d.cuDeviceTotalMem);
  find(library, "cuDevicePrimaryCtxRetain", d.cuDevicePrimaryCtxRetain);
  find(library, "cuDevicePrimaryCtxRelease_v2", d.cuDevicePrimaryCtxRelease);
  find(library, "cuCtxSetCurrent", d.cuCtxSetCurrent);
  find(library, "cuMemGetInfo_v2", d.cuMemGetInfo);
  find(library, "cuStreamCreate", d.cuStreamCreate);
  find(library, "cuStreamDestroy_v2", d.cuStreamDestroy);
  find(library, "cuStreamSynchronize", d.cuStreamSynchronize);
  find(library, "cuEventCreate", d.cuEventCreate);
  find(library, "cuEventDestroy_v2", d.cuEventDestroy);
  find(library, "cuEventRecord", d.cuEventRecord);
  find(library, "cuEventSynchronize", d.cuEventSynchronize);
  find(library, "cuEventElapsedTime", d.cuEventElapsedTime);
  find(library, "cuMemAlloc_v2", d.cuMemAlloc);
  find(library, "cuMemFree_v2", d.cuMemFree);
  find(library, "cuMemHostAlloc", d.cuMemHostAlloc);
  find(library, "cuMemFreeHost", d.cuMemFreeHost);
  find(library, "cuMemcpyHtoDAsync_v2", d.cuMemcpyHtoDAsync);
  find(library, "cuMemcpyDtoHAsync_v2", d.cuMemcpyDtoHAsync);
  find(library, "cuMemcpyDtoDAsync_v2", d.cuMemcpyDtoDAsync);
  find(library, "cuMemsetD8Async", d.cuMemsetD8Async);
  find(library, "cuModuleLoadDataEx", d.cuModuleLoadDataEx);
  find(library, "cuModuleUnload", d.cuModuleUnload);
  find(library, "cuModuleGetFunction", d.cuModuleGetFunction);
  find(library, "cuFuncGetAttribute", d.cuFuncGetAttribute);
  find(library, "cuFuncSetAttribute", d.cuFuncSetAttribute);
  find(library, "cuGraphCreate", d.cuGraphCreate);
  find(library, "cuGraphDestroy", d.cuGraphDestroy);
  find(library, "cuGraphAddKernelNode", d.cuGraphAddKernelNode);
  d.cuGraphAddDependencies = reinterpret_cast<decltype(d.cuGraphAddDependencies)>(dlsym(library, "cuGraphAddDependencies_v2"));
  find(library, "cuGraphAddEventRecordNode", d.cuGraphAddEventRecordNode);
  find(library, "cuGraphInstantiateWithFlags", d.cuGraphInstantiate);
  find(library, "cuGraphExecDestroy", d.cuGraphExecDestroy);
  find(library, "cuGraphLaunch", d.cuGraphLaunch);
  int version = 0;
  d.cuDriverGetVersion(&version);
  if (version < kLeastVersion) {
    fail(MB_NO_DEVICE,
         "The NVIDIA driver on this machine supports CUDA %d.%d; the kernels need 12.0. Update it, or use device \"cpu\".",
         version / 1000, version % 1000 / 10);
  }
  const Result result = d.cuInit(0);
  if (result != kSuccess) {
    const char *text = nullptr;
    d.cuGetErrorString(result, &text);
    fail(MB_NO_DEVICE, "The NVIDIA driver does not start: %s (CUresult %d). Use device \"cpu\".",
         text != nullptr ? text : "no text",
         result);
  }
  return d;
}

}  // namespace

const Driver &driver() {
  static const Driver opened = open_driver();  // after a failure the next call tries again
  return opened;
}

std::string result_text(Result result) {
  const char *name = nullptr, *text = nullptr;
  driver().cuGetErrorName(result, &name);
  driver().cuGetErrorString(result, &text);
  return std::string(name != nullptr ? name : "CUresult " + std::to_string(result)) +
         (text != nullptr ? std::string(" (") + text + ")" : "");
}

void check(Result result, const char *what) {
  if (result == kSuccess) return;
  const mb_status status = result == kErrorOutOfMemory     ? MB_OUT_OF_MEMORY
                           : result == kErrorLaunchTimeout ? MB_TIMEOUT
                                                           : MB_DEVICE_LOST;
  fail(status, "%s failed: %s.", what, result_text(result).c_str());
}

}  // namespace mb::cuda
