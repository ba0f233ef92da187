// Detect mode: kernels are compiled with -fsanitize=thread, and this is the run-time library that they call. Every access is
// checked for bounds, for races within and between threadgroups and dispatches, and for reads of fresh threadgroup memory.
//
// Shadow memory goes by address, so that overlapping views of the same pages share it. A cell stands for 4 bytes; a page whose
// memory is accessed in smaller pieces is split to 1 byte a cell.
#include "exec.hpp"
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <unordered_map>
using namespace sm;
namespace {
struct Access { uint dispatch = 0, group = 0, tg = 0, sg = 0; unsigned short lane = 0; bool atomic = false; };
// The last write; the last two readers; and a reader of another threadgroup than the last one's.
struct Cell { Access write, read, readBefore, readElsewhere; };
constexpr ulong PAGE = 4096;
struct Page { uint shift = 2; std::vector<Cell> cells = std::vector<Cell>(PAGE >> 2); };
std::unordered_map<ulong, Page> shadow;
std::mutex infoLock;
std::vector<DispatchInfo> infos(1);

void split(Page& p) {
  std::vector<Cell> fine(PAGE);
  for (ulong i = 0; i < PAGE; i++) fine[i] = p.cells[i >> p.shift];
  p.cells = std::move(fine);
  p.shift = 0;
}

struct Touch { Worker* w; bool write, atomic, threadgroup; const char* what; ulong offset; uint orderedAfter; const void* pc; };

// True when a barrier lies between an access of this threadgroup and now.
bool ordered(Worker* w, const Access& a, int memory) {
  if (a.group != w->group) return false;
  if (a.lane == w->current || a.tg != w->epoch[memory]) return true;
  return a.lane / SIMD == w->current / SIMD && a.sg != w->simdgroups[w->current / SIMD].epoch[memory];
}
void against(const Touch& t, const Access& a, const char* did) {
  if (!a.dispatch || (a.atomic && t.atomic)) return;
  Worker* w = t.w;
  const char* does = t.write ? "writes" : "reads";
  if (a.dispatch != w->d->id) {
    if (t.threadgroup) return;
    const DispatchInfo &x = infos[a.dispatch], &y = infos[w->d->id];
    if (x.encoder != y.encoder || !y.concurrent || x.number < t.orderedAfter) return;
    die(w, format("missing memoryBarrier in a concurrent encoder: '%s' %s %s +%lu that '%s' %s", y.name.c_str(), does, t.what, t.offset,
                  x.name.c_str(), did) + where(t.pc));
  }
  if (ordered(w, a, t.threadgroup ? 0 : 1)) return;
  if (a.group != w->group) {
    if (t.threadgroup) return;
    die(w, format("race between threadgroups %u and %u in '%s' on %s +%lu: one %s, the other %s", a.group - 1, w->group - 1,
                  w->d->kernel->name, t.what, t.offset, did, does) + where(t.pc));
  }
  die(w, format("data race (no threadgroup_barrier with %s between?) on %s +%lu in '%s': thread %d %s, thread %d %s",
                t.threadgroup ? "mem_threadgroup" : "mem_device", t.what, t.offset, w->d->kernel->name, a.lane, did, w->current, does) +
             where(t.pc));
}
void touch(const Touch& t, Cell& c) {
  Worker* w = t.w;
  int m = t.threadgroup ? 0 : 1;
  bool fresh = c.write.dispatch != w->d->id || c.write.group != w->group;
  if (!t.threadgroup || !fresh) against(t, c.write, "writes");
  Access now;
  now.dispatch = w->d->id; now.group = w->group; now.lane = (unsigned short)w->current; now.atomic = t.atomic;
  now.tg = w->epoch[m];
  now.sg = w->simdgroups[w->current / SIMD].epoch[m];
  if (t.write) {
    against(t, c.read, "reads");
    against(t, c.readBefore, "reads");
    against(t, c.readElsewhere, "reads");
    c.write = now;
    return;
  }
  if (t.threadgroup && fresh && !t.atomic) {
    die(w, format("read of uninitialised threadgroup memory %s +%lu by ", t.what, t.offset) + who(w, w->current) + where(t.pc));
  }
  Access& r = c.read;
  if (r.dispatch == now.dispatch && r.group == now.group && r.lane == now.lane) { r = now; return; }
  if (r.dispatch && (r.dispatch != now.dispatch || r.group != now.group)) c.readElsewhere = r;
  c.readBefore = r;
  r = now;
}
void touchBytes(Touch t, char* p, ulong size, char* base) {
  ulong a = (ulong)p, end = a + size;
  while (a < end) {
    Page& page = shadow[a / PAGE];
    ulong stop = std::min(end, (a / PAGE + 1) * PAGE);
    if (page.shift && ((a | stop) & 3)) split(page);
    ulong step = 1ul << page.shift;
    for (; a < stop; a += step) {
      t.offset = a - (ulong)base;
      touch(t, page.cells[(a % PAGE) >> page.shift]);
    }
  }
}
void access(const void* at, ulong size, bool write, const void* pc, bool atomic = false) {
  Worker* w = worker;
  if (!w || !w->inFiber) return;
  ulong a = (ulong)at;
  if (a >= w->stackLow && a < w->stackHigh) return;
  if (a >= (ulong)w && a < (ulong)(w + 1)) return;         // lane contexts and simdgroup slots
  char* p = (char*)at;
  for (auto& r : w->regions) {
    if (p >= r.p && p + size <= r.p + r.length) return touchBytes({w, write, atomic, true, r.name, 0, 0, pc}, p, size, r.p);
  }
  for (auto& b : w->d->bindings) {
    if (b.p && p >= b.p && p + size <= b.p + b.length) return touchBytes({w, write, atomic, false, b.name, 0, b.orderedAfter, pc}, p, size, b.p);
  }
  Dl_info info{};
  if (!write && dladdr(p, &info) && info.dli_fname && strstr(info.dli_fname, "softmetal-")) return;   // constants of the kernels
  std::string m;
  for (int i = 0; i < MAX_BINDINGS; i++) {
    Binding& b = w->d->bindings[i];
    if (b.p && p + size > b.p + b.length && p < b.p + b.length + (1 << 20)) {
      m = format(", %ld bytes past the end of buffer(%d) '%s' (%lu bytes bound)", (long)(p + size - b.p - b.length), i, b.name, b.length);
    } else if (b.p && p < b.p && p + 65536 > b.p && m.empty()) {
      m = format(", %ld bytes before buffer(%d) '%s'", (long)(b.p - p), i, b.name);
    }
  }
  for (auto& r : w->regions) {
    if (p + size > r.p + r.length && p < r.p + r.length + 4096) m = format(", past the end of threadgroup '%s' (%lu bytes)", r.name, r.length);
  }
  die(w, format("out-of-bounds %s of %lu bytes", write ? "write" : "read", size) + m + " by " + who(w, w->current) + where(pc));
}
}  // namespace
uint sm::newDispatch(DispatchInfo info) {
  std::lock_guard<std::mutex> l(infoLock);
  infos.push_back(std::move(info));
  return (uint)infos.size() - 1;
}
void sm::forgetShadow(char* p, ulong length) {
  for (ulong page = (ulong)p / PAGE; page <= ((ulong)p + length) / PAGE; page++) if (!shadow.empty()) shadow.erase(page);
}

#define EXPORT extern "C" __attribute__((visibility("default")))
#define RA __builtin_return_address(0)
#define ACCESSES(N)                                                                   \
  EXPORT void __tsan_read##N(void* p) { access(p, N, false, RA); }                    \
  EXPORT void __tsan_write##N(void* p) { access(p, N, true, RA); }                    \
  EXPORT void __tsan_unaligned_read##N(void* p) { access(p, N, false, RA); }          \
  EXPORT void __tsan_unaligned_write##N(void* p) { access(p, N, true, RA); }          \
  EXPORT void __tsan_read_write##N(void* p) { access(p, N, false, RA); access(p, N, true, RA); } \
  EXPORT void __tsan_unaligned_read_write##N(void* p) { access(p, N, false, RA); access(p, N, true, RA); }
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void*) {}
EXPORT void __tsan_func_exit() {}
EXPORT void* __tsan_memcpy(void* d, const void* s, size_t n) { access(s, n, false, RA); access(d, n, true, RA); return memcpy(d, s, n); }
EXPORT void* __tsan_memmove(void* d, const void* s, size_t n) { access(s, n, false, RA); access(d, n, true, RA); return memmove(d, s, n); }
EXPORT void* __tsan_memset(void* d, int c, size_t n) { access(d, n, true, RA); return memset(d, c, n); }
#define FETCH(NAME) \
  EXPORT uint __tsan_atomic32_fetch_##NAME(uint* p, uint v, int) { access(p, 4, true, RA, true); return __atomic_fetch_##NAME(p, v, 0); }
FETCH(add) FETCH(sub) FETCH(and) FETCH(or) FETCH(xor)
EXPORT uint __tsan_atomic32_exchange(uint* p, uint v, int) { access(p, 4, true, RA, true); return __atomic_exchange_n(p, v, 0); }
EXPORT uint __tsan_atomic32_load(uint* p, int) { access(p, 4, false, RA, true); return __atomic_load_n(p, 0); }
EXPORT void __tsan_atomic32_store(uint* p, uint v, int) { access(p, 4, true, RA, true); __atomic_store_n(p, v, 0); }
EXPORT uint __tsan_atomic32_compare_exchange_val(uint* p, uint expected, uint v, int, int) {
  access(p, 4, true, RA, true);
  __atomic_compare_exchange_n(p, &expected, v, false, 0, 0);
  return expected;
}
