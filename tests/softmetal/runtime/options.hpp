// What can be set from the environment or by softmetal_set, and the counters.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
namespace sm {
enum class Order { forward, reverse, shuffle };
struct Options {
  bool detect = false;             // instrumented kernels: bounds, races, undefined behaviour
  bool strict = true;              // misuse of the API aborts
  bool poolStrict = false;         // autorelease without a pool is misuse
  bool pageAlign = false;          // buffers start on a page (else they end on one, so that overruns fault)
  Order order = Order::forward;    // lanes, threadgroups, independent dispatches
  unsigned seed = 1;
  unsigned threads = 0;            // host threads; 0: one per core, 8 at most
  uint64_t maxThreads = 1024;      // per threadgroup, of every pipeline
  uint64_t maxBuffer = 8ull << 30;
  int os = 15;                     // simulated macOS major version
  std::string cache;               // folder of compiled kernels
};
extern Options options;

struct Counters {
  std::atomic<int64_t> commandBuffers, commits, waits, encoders, dispatches, barriers, blits, buffers, bufferBytes, noCopyBuffers,
      libraries, pipelines, archiveHits, archiveMisses, kernelCompiles;
};
extern Counters counters;

// Reports a use of the API that Metal's debug layer would stop; aborts when strict.
void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* f, ...) __attribute__((format(printf, 1, 2)));
// True when the command buffer that is now committed must end in error; *code tells which.
bool takeInjectedError(uint32_t* code);
}
