#include "options.hpp"
#include "softmetal.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
namespace sm {
Options options;
Counters counters;
namespace {
std::mutex lock;
std::string firstMisuse;
int64_t misuses;
uint32_t injectAfter, injectCode, injectCount;

const struct { const char* name; std::atomic<int64_t>* value; } names[] = {
    {"command_buffers", &counters.commandBuffers}, {"commits", &counters.commits}, {"waits", &counters.waits},
    {"encoders", &counters.encoders}, {"dispatches", &counters.dispatches}, {"barriers", &counters.barriers},
    {"blits", &counters.blits}, {"buffers", &counters.buffers}, {"buffer_bytes", &counters.bufferBytes},
    {"no_copy_buffers", &counters.noCopyBuffers}, {"libraries", &counters.libraries}, {"pipelines", &counters.pipelines},
    {"archive_hits", &counters.archiveHits}, {"archive_misses", &counters.archiveMisses},
    {"kernel_compiles", &counters.kernelCompiles},
};
bool setFlag(bool& flag, const char* v) { flag = *v && strcmp(v, "0"); return true; }
template <class T> bool setNumber(T& n, const char* v) {
  char* end;
  unsigned long long u = strtoull(v, &end, 10);
  if (!*v || *end) return false;
  n = (T)u;
  return true;
}
bool set(const char* name, const char* v) {
  Options& o = options;
  if (!strcmp(name, "detect")) return setFlag(o.detect, v);
  if (!strcmp(name, "strict")) return setFlag(o.strict, v);
  if (!strcmp(name, "pool_strict")) return setFlag(o.poolStrict, v);
  if (!strcmp(name, "page_align")) return setFlag(o.pageAlign, v);
  if (!strcmp(name, "seed")) return setNumber(o.seed, v);
  if (!strcmp(name, "threads")) return setNumber(o.threads, v);
  if (!strcmp(name, "max_threads")) return setNumber(o.maxThreads, v) && o.maxThreads >= 32;
  if (!strcmp(name, "max_buffer")) return setNumber(o.maxBuffer, v);
  if (!strcmp(name, "os")) return setNumber(o.os, v);
  if (!strcmp(name, "cache")) { o.cache = v; return true; }
  if (!strcmp(name, "order")) {
    const char* orders[] = {"forward", "reverse", "shuffle"};
    for (int i = 0; i < 3; i++) if (!strcmp(v, orders[i])) { o.order = (Order)i; return true; }
  }
  return false;
}
struct FromEnvironment {
  FromEnvironment() {
    for (const char* n : {"detect", "strict", "pool_strict", "page_align", "seed", "threads", "max_threads", "max_buffer", "os",
                          "cache", "order"}) {
      std::string e = "SOFTMETAL_";
      for (const char* c = n; *c; c++) e += (char)toupper(*c);
      const char* v = getenv(e.c_str());
      if (v && !set(n, v)) { fprintf(stderr, "softmetal: %s=%s is not understood\n", e.c_str(), v); abort(); }
    }
    if (const char* v = getenv("SOFTMETAL_INJECT"))            // nth:code[:count]
      if (sscanf(v, "%u:%u:%u", &injectAfter, &injectCode, &injectCount) == 2) injectCount = 1;
  }
} fromEnvironment;
}  // namespace

void fail(const char* f, ...) {
  char text[1024];
  va_list a;
  va_start(a, f);
  vsnprintf(text, sizeof text, f, a);
  va_end(a);
  fprintf(stderr, "softmetal: API misuse: %s\n", text);
  if (options.strict) abort();
  std::lock_guard<std::mutex> l(lock);
  if (misuses++ == 0) firstMisuse = text;            // the others are mostly its consequences
}
std::string format(const char* f, ...) {
  char b[1024];
  va_list a;
  va_start(a, f);
  vsnprintf(b, sizeof b, f, a);
  va_end(a);
  return b;
}
bool takeInjectedError(uint32_t* code) {
  std::lock_guard<std::mutex> l(lock);
  if (injectAfter > 1) { injectAfter--; return false; }
  if (injectAfter == 0 || injectCount == 0) return false;
  if (--injectCount == 0) injectAfter = 0;
  *code = injectCode;
  return true;
}
}  // namespace sm
using namespace sm;
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int32_t softmetal_set(const char* name, const char* value) { return set(name, value) ? 0 : -1; }
EXPORT int64_t softmetal_counter(const char* name) {
  for (auto& n : names) if (!strcmp(name, n.name)) return *n.value;
  return -1;
}
EXPORT void softmetal_reset_counters() {
  for (auto& n : names) *n.value = 0;
  std::lock_guard<std::mutex> l(lock);
  misuses = 0;
  firstMisuse.clear();
}
EXPORT void softmetal_inject_error(uint32_t nth, uint32_t code, uint32_t count) {
  std::lock_guard<std::mutex> l(lock);
  injectAfter = nth; injectCode = code; injectCount = count;
}
EXPORT int64_t softmetal_misuses() { std::lock_guard<std::mutex> l(lock); return misuses; }
EXPORT size_t softmetal_first_misuse(char* text, size_t capacity) {
  std::lock_guard<std::mutex> l(lock);
  if (capacity) { size_t n = firstMisuse.size() < capacity ? firstMisuse.size() : capacity - 1; memcpy(text, firstMisuse.data(), n); text[n] = 0; }
  return firstMisuse.size();
}
