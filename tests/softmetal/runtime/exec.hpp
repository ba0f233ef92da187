// The software GPU: runs one dispatch of a compiled kernel. The threads of a threadgroup are fibers on one thread of the host.
#pragma once
#include "options.hpp"
#include <csetjmp>
#include <cstdint>
#include <random>
#include <string>
#include <vector>
namespace sm {
typedef unsigned int uint;
typedef unsigned long ulong;

// ---- layouts shared with shim/entry_cpu.h
struct Context { void* const* buffers; void* const* threadgroup; uint values[11][4]; };
enum ParamKind { paramBuffer, paramThreadgroup, paramBuiltin };
enum ParamFlags { paramReadOnly = 1, paramReference = 2, paramConditional = 4, paramConstantSpace = 8 };
struct Param { int kind, index, flags, size, align, condition; const char* name; };
struct Kernel { const char* name; void (*entry)(Context*); const Param* params; int maxThreads; uint constantMask; };
struct Constant { const char* name; int index; void* value; int size; bool* defined; };

// ---- a dispatch
constexpr int MAX_THREADS = 1024, SIMD = 32, MAX_BINDINGS = 31;
constexpr ulong MAX_THREADGROUP_BYTES = 32768;
struct Binding {
  char* p = nullptr;
  ulong length = 0;
  const char* name = "";
  uint orderedAfter = 0;           // dispatches of the same encoder with a smaller number are behind a barrier for this buffer
};
struct Dispatch {
  const Kernel* kernel;
  Binding bindings[MAX_BINDINGS];
  ulong threadgroupBytes[MAX_BINDINGS] = {};
  uint grid[3], group[3], threads[3];        // threadgroups, threads a group, threads in all
  uint id = 0;                               // from newDispatch
  bool instrumented = false;
};
// Where a dispatch stands, for the checks between dispatches.
struct DispatchInfo { uint encoder, number; bool concurrent; std::string name; };
uint newDispatch(DispatchInfo info);
// Runs it to the end. Returns "", or what went wrong.
std::string runDispatch(Dispatch& d);

// ---- memory that must not be touched
void addGuard(char* low, char* high, const char* what);
void dropGuard(char* low);
// Shadow state of freed memory is forgotten; a blit counts as a write of dispatch `id`.
void forgetShadow(char* p, ulong length);

// ---- inside: the state of one host thread that runs threadgroups
enum LaneState { laneReady, laneSimd, laneBarrier, laneSimdBarrier, laneDone };
struct Slot { alignas(16) char bytes[32]; };
struct Simdgroup {
  int lanes, alive, arrived;
  const void* site;
  int parity;                      // two sets of slots: results of one operation are read while the next gathers
  Slot slots[2][SIMD + 1];
  int waiting;                     // in simdgroup_barrier
  uint epoch[2];                   // barriers passed: threadgroup memory, device memory
};
struct Lane { void* sp; LaneState state; bool completes; const void* site; Context context; };
struct Region { char* p; ulong length; const char* name; };
struct Worker {
  char* stacks;
  ulong stackLow, stackHigh;
  Lane lanes[MAX_THREADS];
  Simdgroup simdgroups[MAX_THREADS / SIMD];
  int n, simdgroupCount, alive, waiting;
  const void* barrierSite;
  uint epoch[2];
  int queue[2048];
  uint head, tail;
  int current;
  void* scheduler;
  bool inFiber, aborted;
  std::string error;
  sigjmp_buf recover;
  Dispatch* d;
  uint group;
  std::vector<Region> regions;     // threadgroup memory
  std::vector<char> dynamic;
  void* buffers[MAX_BINDINGS];
  void* threadgroup[MAX_BINDINGS];
  std::mt19937 random;
  char signalStack[64 << 10];
};
// Read at every barrier: the initial-exec model spares a call.
extern thread_local Worker* worker __attribute__((tls_model("initial-exec")));
// Ends the dispatch with an error, from inside a fiber.
[[noreturn]] void die(Worker* w, std::string message);
std::string where(const void* pc);           // " at file.metal:line", or ""
std::string who(Worker* w, int lane);
void installFaultHandler();
}
