// driver.h: the NVIDIA driver API, opened at run time. Types and numbers are those of its stable binary interface; only what
// this device calls is declared.
#pragma once
#include <cstddef>
#include <cstdint>

#include "../device.h"

namespace mb::cuda {

using Result = int;
using DeviceOrdinal = int;
using DevicePointer = unsigned long long;
using ContextHandle = struct CUctx_st *;
using StreamHandle = struct CUstream_st *;
using EventHandle = struct CUevent_st *;
using ModuleHandle = struct CUmod_st *;
using FunctionHandle = struct CUfunc_st *;
using GraphHandle = struct CUgraph_st *;
using NodeHandle = struct CUgraphNode_st *;
using ExecHandle = struct CUgraphExec_st *;

// CUresult
constexpr Result kSuccess = 0, kErrorOutOfMemory = 2, kErrorNoDevice = 100, kErrorNotFound = 500, kErrorLaunchTimeout = 702;
// CUdevice_attribute
constexpr int kMaxThreadsPerBlock = 1, kMaxSharedPerBlock = 8, kWarpSize = 10, kMultiprocessors = 16, kL2CacheBytes = 38,
              kComputeMajor = 75, kComputeMinor = 76, kMostSharedPerBlock = 97;
// CUfunction_attribute
constexpr int kFunctionMaxThreads = 0, kFunctionSharedBytes = 1, kFunctionLocalBytes = 3, kFunctionRegisters = 4,
              kFunctionMostDynamicSharedBytes = 8;
// CUjit_option
constexpr int kJitInfoBuffer = 3, kJitInfoBytes = 4, kJitErrorBuffer = 5, kJitErrorBytes = 6;
constexpr unsigned kStreamNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr unsigned kEventDefault = 0;

// CUgraphEdgeData. The kernel behind an early edge may start once all threadgroups of the one before have started; it
// waits itself before it reads what that one wrote (griddepcontrol).
struct EdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
constexpr EdgeData kEarlyEdge = {1, 0, 1, {}};  // CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC

// CUDA_KERNEL_NODE_PARAMS, version 1
struct KernelNode {
  FunctionHandle function;
  unsigned groups[3], threads[3];
  unsigned shared_bytes;
  void **arguments;
  void **extra;
};

// One pointer for each function that is called; the names without their version suffixes.
struct Driver {
  Result (*cuInit)(unsigned);
  Result (*cuDriverGetVersion)(int *);
  Result (*cuGetErrorName)(Result, const char **);
  Result (*cuGetErrorString)(Result, const char **);
  Result (*cuDeviceGetCount)(int *);
  Result (*cuDeviceGet)(DeviceOrdinal *, int);
  Result (*cuDeviceGetName)(char *, int, DeviceOrdinal);
  Result (*cuDeviceGetAttribute)(int *, int, DeviceOrdinal);
  Result (*cuDeviceTotalMem)(size_t *, DeviceOrdinal);
  Result (*cuDevicePrimaryCtxRetain)(ContextHandle *, DeviceOrdinal);
  Result (*cuDevicePrimaryCtxRelease)(DeviceOrdinal);
  Result (*cuCtxSetCurrent)(ContextHandle);
  Result (*cuMemGetInfo)(size_t *, size_t *);
  Result (*cuStreamCreate)(StreamHandle *, unsigned);
  Result (*cuStreamDestroy)(StreamHandle);
  Result (*cuStreamSynchronize)(StreamHandle);
  Result (*cuEventCreate)(EventHandle *, unsigned);
  Result (*cuEventDestroy)(EventHandle);
  Result (*cuEventRecord)(EventHandle, StreamHandle);
  Result (*cuEventSynchronize)(EventHandle);
  Result (*cuEventElapsedTime)(float *, EventHandle, EventHandle);
  Result (*cuMemAlloc)(DevicePointer *, size_t);
  Result (*cuMemFree)(DevicePointer);
  Result (*cuMemHostAlloc)(void **, size_t, unsigned);
  Result (*cuMemFreeHost)(void *);
  Result (*cuMemcpyHtoDAsync)(DevicePointer, const void *, size_t, StreamHandle);
  Result (*cuMemcpyDtoHAsync)(void *, DevicePointer, size_t, StreamHandle);
  Result (*cuMemcpyDtoDAsync)(DevicePointer, DevicePointer, size_t, StreamHandle);
  Result (*cuMemsetD8Async)(DevicePointer, unsigned char, size_t, StreamHandle);
  Result (*cuModuleLoadDataEx)(ModuleHandle *, const void *, unsigned, int *, void **);
  Result (*cuModuleUnload)(ModuleHandle);
  Result (*cuModuleGetFunction)(FunctionHandle *, ModuleHandle, const char *);
  Result (*cuFuncGetAttribute)(int *, int, FunctionHandle);
  Result (*cuFuncSetAttribute)(FunctionHandle, int, int);
  Result (*cuGraphCreate)(GraphHandle *, unsigned);
  Result (*cuGraphDestroy)(GraphHandle);
  Result (*cuGraphAddKernelNode)(NodeHandle *, GraphHandle, const NodeHandle *, size_t, const KernelNode *);
  // Null where the driver is older than CUDA 12.3.
  Result (*cuGraphAddDependencies)(GraphHandle, const NodeHandle *, const NodeHandle *, const EdgeData *, size_t);
  Result (*cuGraphAddEventRecordNode)(NodeHandle *, GraphHandle, const NodeHandle *, size_t, EventHandle);
  Result (*cuGraphInstantiate)(ExecHandle *, GraphHandle, unsigned long long);
  Result (*cuGraphExecDestroy)(ExecHandle);
  Result (*cuGraphLaunch)(ExecHandle, StreamHandle);
};

// The driver, opened and initialised at the first call. Throws Error(MB_NO_DEVICE) where there is none, naming what is missing.
// The environment variable MARKBASE_LIBCUDA names another file than libcuda.so.1.
const Driver &driver();

// What the driver says of a result: "CUDA_ERROR_X (text)".
std::string result_text(Result result);

// Throws an Error for a result other than success; `what` begins the text, such as "Allocating 5 bytes".
void check(Result result, const char *what);

}  // namespace mb::cuda
