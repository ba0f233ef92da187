// Scheduling: fibers, barriers, simdgroup operations, host threads.
#include "exec.hpp"
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <sys/mman.h>
#include <thread>
using namespace sm;
extern "C" void sm_switch(void** save, void* to);
extern "C" void* sm_fiber(char* top, void (*main)());
namespace sm { thread_local Worker* worker __attribute__((tls_model("initial-exec"))); }
namespace {
constexpr size_t STACK = 128 << 10;
std::mutex idleLock;
std::vector<Worker*> idle;

Worker* takeWorker() {
  Worker* w = nullptr;
  {
    std::lock_guard<std::mutex> l(idleLock);
    if (!idle.empty()) { w = idle.back(); idle.pop_back(); }
  }
  if (!w) {
    w = new Worker();
    w->stacks = (char*)mmap(nullptr, MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < MAX_THREADS; i++) mprotect(w->stacks + i * STACK, 4096, PROT_NONE);
    w->stackLow = (ulong)w->stacks;
    w->stackHigh = w->stackLow + MAX_THREADS * STACK;
  }
  stack_t ss{};
  ss.ss_sp = w->signalStack;
  ss.ss_size = sizeof w->signalStack;
  sigaltstack(&ss, nullptr);
  return worker = w;
}
void giveWorker() {
  stack_t ss{};
  ss.ss_flags = SS_DISABLE;
  sigaltstack(&ss, nullptr);
  std::lock_guard<std::mutex> l(idleLock);
  idle.push_back(worker);
  worker = nullptr;
}

void push(Worker* w, int lane) { w->lanes[lane].state = laneReady; w->queue[w->tail++ & 2047] = lane; }
// Makes the waiting lanes of a range ready, in the order that is asked for.
void pushRange(Worker* w, int from, int to, LaneState state) {
  if (options.order == Order::forward) {
    for (int i = from; i < to; i++) if (w->lanes[i].state == state) push(w, i);
    return;
  }
  int order[MAX_THREADS], n = 0;
  for (int i = from; i < to; i++) if (w->lanes[i].state == state) order[n++] = i;
  if (options.order == Order::reverse) std::reverse(order, order + n);
  if (options.order == Order::shuffle) std::shuffle(order, order + n, w->random);
  for (int i = 0; i < n; i++) push(w, order[i]);
}
void toScheduler(Worker* w) {
  void* unused;
  sm_switch(w->current >= 0 ? &w->lanes[w->current].sp : &unused, w->scheduler);
}
// Runs the next ready fiber; called on one that has just blocked or ended.
void block(Worker* w) {
  int me = w->current;
  if (w->head != w->tail) {
    int next = w->queue[w->head++ & 2047];
    if (next == me) return;
    w->current = next;
    sm_switch(&w->lanes[me].sp, w->lanes[next].sp);
    return;
  }
  if (w->alive == 0) { toScheduler(w); return; }
  int c[5] = {};
  const void* site = nullptr;
  for (int i = 0; i < w->n; i++) {
    c[w->lanes[i].state]++;
    if (w->lanes[i].state != laneDone && w->lanes[i].state != laneReady && !site) site = w->lanes[i].site;
  }
  die(w, format("deadlock in '%s': %d threads wait in threadgroup_barrier, %d in simdgroup_barrier, %d in a simdgroup operation, "
                "%d have returned (barrier or simdgroup operation in divergent control flow)",
                w->d->kernel->name, c[laneBarrier], c[laneSimdBarrier], c[laneSimd], c[laneDone]) + where(site));
}
void fiberMain() {
  Worker* w = worker;
  w->d->kernel->entry(&w->lanes[w->current].context);
  int i = w->current;
  w->lanes[i].state = laneDone;
  w->alive--;
  w->simdgroups[i / SIMD].alive--;
  block(w);
  abort();
}
void placeThreadgroupMemory(Worker* w) {
  Dispatch& d = *w->d;
  constexpr ulong gap = 128;
  ulong total = gap;
  for (ulong n : d.threadgroupBytes) total += n ? n + gap : 0;
  if (w->dynamic.size() < total) w->dynamic.resize(total);
  ulong at = gap;
  w->regions.clear();
  for (int i = 0; i < MAX_BINDINGS; i++) {
    w->threadgroup[i] = nullptr;
    ulong n = d.threadgroupBytes[i];
    if (!n) continue;
    char* p = (char*)(((ulong)w->dynamic.data() + at + 15) & ~15ul);
    memset(p, 0xCD, n);
    w->threadgroup[i] = p;
    w->regions.push_back({p, n, "threadgroup argument"});
    at += n + gap;
  }
}
void runGroup(Worker* w, uint gx, uint gy, uint gz) {
  Dispatch& d = *w->d;
  uint g[3] = {gx, gy, gz}, t[3];
  for (int k = 0; k < 3; k++) t[k] = std::min(d.group[k], d.threads[k] - g[k] * d.group[k]);   // smaller at the edge of a grid
  w->n = t[0] * t[1] * t[2];
  w->simdgroupCount = (w->n + SIMD - 1) / SIMD;
  w->alive = w->n;
  w->waiting = 0;
  w->epoch[0] = w->epoch[1] = 1;
  w->head = w->tail = 0;
  w->aborted = false;
  w->group = gx + d.grid[0] * (gy + d.grid[1] * gz) + 1;
  for (int s = 0; s < w->simdgroupCount; s++) {
    Simdgroup& q = w->simdgroups[s];
    q.lanes = q.alive = std::min(SIMD, w->n - s * SIMD);
    q.arrived = q.waiting = q.parity = 0;
    q.epoch[0] = q.epoch[1] = 1;
  }
  for (int i = 0; i < MAX_BINDINGS; i++) w->buffers[i] = d.bindings[i].p;
  placeThreadgroupMemory(w);
  int i = 0;
  for (uint z = 0; z < t[2]; z++) for (uint y = 0; y < t[1]; y++) for (uint x = 0; x < t[0]; x++, i++) {
    Lane& l = w->lanes[i];
    l.site = nullptr;
    l.completes = false;
    l.state = laneSimd;
    Context& c = l.context;
    c.buffers = w->buffers;
    c.threadgroup = w->threadgroup;
    uint p[3] = {x, y, z};
    for (int k = 0; k < 3; k++) {
      c.values[0][k] = g[k] * d.group[k] + p[k];
      c.values[1][k] = p[k];
      c.values[3][k] = g[k];
      c.values[4][k] = d.group[k];
      c.values[5][k] = d.threads[k];
      c.values[6][k] = d.grid[k];
    }
    c.values[2][0] = i;
    c.values[7][0] = i % SIMD;
    c.values[8][0] = i / SIMD;
    c.values[9][0] = w->simdgroupCount;
    c.values[10][0] = SIMD;
    // Tops are staggered: fibers would otherwise share cache sets.
    l.sp = sm_fiber((char*)(w->stackLow + (i + 1) * STACK - 64 - (i % SIMD) * 128), fiberMain);
  }
  pushRange(w, 0, w->n, laneSimd);
  if (sigsetjmp(w->recover, 1) == 0) {
    w->inFiber = true;
    w->current = w->queue[w->head++ & 2047];
    sm_switch(&w->scheduler, w->lanes[w->current].sp);
  }
  w->inFiber = false;
}

// ---- host threads that help with the groups of one dispatch
class Pool {
 public:
  void run(int helpers, const std::function<void()>& body) {
    std::unique_lock<std::mutex> l(lock);
    while ((int)threads.size() < helpers) threads.emplace_back([this] { loop(); });
    job = &body;
    wanted = helpers;
    ready.notify_all();
    l.unlock();
    body();
    l.lock();
    wanted = 0;                                     // a helper that has not woken by now is not needed
    done.wait(l, [this] { return active == 0; });
    job = nullptr;
  }
 private:
  void loop() {
    std::unique_lock<std::mutex> l(lock);
    for (;;) {
      ready.wait(l, [this] { return wanted > 0; });
      wanted--;
      active++;
      auto* body = job;
      l.unlock();
      (*body)();
      l.lock();
      if (--active == 0) done.notify_all();
    }
  }
  std::mutex lock;
  std::condition_variable ready, done;
  std::vector<std::thread> threads;
  const std::function<void()>* job = nullptr;
  int wanted = 0, active = 0;
};
Pool& pool() { static Pool* p = new Pool; return *p; }    // its threads live as long as the process
}  // namespace

void sm::die(Worker* w, std::string message) {
  if (w->error.empty()) w->error = std::move(message);
  w->aborted = true;
  toScheduler(w);
  abort();
}
std::string sm::who(Worker* w, int lane) {
  uint *p = w->lanes[lane].context.values[1], *g = w->lanes[lane].context.values[3];
  return format("thread (%u,%u,%u) of threadgroup (%u,%u,%u) in '%s'", p[0], p[1], p[2], g[0], g[1], g[2], w->d->kernel->name);
}
std::string sm::runDispatch(Dispatch& d) {
  installFaultHandler();
  ulong groups = (ulong)d.grid[0] * d.grid[1] * d.grid[2];
  ulong hosts = options.threads ? options.threads : std::min(8u, std::max(1u, std::thread::hardware_concurrency()));
  if (d.instrumented) hosts = 1;                    // the shadow state has no locks
  hosts = std::min(hosts, groups);
  std::vector<uint> shuffled;
  if (options.order == Order::shuffle) {
    shuffled.resize(groups);
    for (ulong i = 0; i < groups; i++) shuffled[i] = (uint)i;
    std::mt19937 random(options.seed);
    std::shuffle(shuffled.begin(), shuffled.end(), random);
  }
  std::atomic<ulong> next{0};
  std::atomic<bool> stop{false};
  std::mutex errorLock;
  std::string error;
  std::function<void()> body = [&] {
    Worker* w = takeWorker();
    w->d = &d;
    w->error.clear();
    w->random.seed(options.seed);
    for (ulong i; !stop && (i = next++) < groups;) {
      ulong j = options.order == Order::reverse ? groups - 1 - i : options.order == Order::shuffle ? shuffled[i] : i;
      runGroup(w, j % d.grid[0], j / d.grid[0] % d.grid[1], j / d.grid[0] / d.grid[1]);
      if (w->aborted) {
        std::lock_guard<std::mutex> l(errorLock);
        if (error.empty()) error = w->error;
        stop = true;
      }
    }
    giveWorker();
  };
  if (hosts > 1) pool().run((int)hosts - 1, body);
  else body();
  return error;
}

// ---- called from kernels
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT void sm_tg_barrier(uint flags) {
  Worker* w = worker;
  Lane& l = w->lanes[w->current];
  const void* site = __builtin_return_address(0);
  if (w->waiting == 0) w->barrierSite = site;
  else if (w->barrierSite != site) {
    die(w, "threads of one threadgroup wait in different threadgroup_barrier calls: " + who(w, w->current) + where(site));
  }
  l.state = laneBarrier;
  l.site = site;
  if (++w->waiting == w->n) {
    w->waiting = 0;
    if (flags & 2) w->epoch[0]++;
    if (flags & 1) w->epoch[1]++;
    pushRange(w, 0, w->n, laneBarrier);
  }
  block(w);
}
EXPORT void sm_sg_barrier(uint flags) {
  Worker* w = worker;
  Lane& l = w->lanes[w->current];
  int s = w->current / SIMD;
  Simdgroup& g = w->simdgroups[s];
  l.state = laneSimdBarrier;
  l.site = __builtin_return_address(0);
  if (++g.waiting == g.lanes) {
    g.waiting = 0;
    if (flags & 2) g.epoch[0]++;
    if (flags & 1) g.epoch[1]++;
    pushRange(w, s * SIMD, s * SIMD + g.lanes, laneSimdBarrier);
  }
  block(w);
}
EXPORT int sm_simd_arrive(const void* value, uint size, void** slots, uint* mask, uint* lane) {
  Worker* w = worker;
  int me = w->current;
  Lane& l = w->lanes[me];
  Simdgroup& g = w->simdgroups[me / SIMD];
  const void* site = __builtin_return_address(0);
  if (g.arrived == 0) g.site = site;
  else if (g.site != site) {
    die(w, "simdgroup operation in divergent control flow: lanes of one simdgroup are at different operations: " + who(w, me) + where(site));
  }
  if (g.alive != g.lanes) {
    die(w, "simdgroup operation in divergent control flow: other lanes of the simdgroup have returned: " + who(w, me) + where(site));
  }
  Slot* s = g.slots[g.parity];
  memcpy(s[me % SIMD].bytes, value, size);
  g.arrived++;
  *slots = s;
  *lane = me % SIMD;
  l.site = site;
  l.completes = g.arrived == g.lanes;
  if (!l.completes) { l.state = laneSimd; block(w); }
  *mask = ~0u >> (SIMD - g.lanes);
  return l.completes;
}
EXPORT void sm_simd_finish(int last) {
  if (!last) return;
  Worker* w = worker;
  int s = w->current / SIMD;
  Simdgroup& g = w->simdgroups[s];
  g.arrived = 0;
  g.parity ^= 1;
  w->lanes[w->current].completes = false;
  pushRange(w, s * SIMD, s * SIMD + g.lanes, laneSimd);
}
EXPORT __attribute__((const)) int sm_leader() {
  Worker* w = worker;
  Simdgroup& g = w->simdgroups[w->current / SIMD];
  int lane = w->current % SIMD;
  return options.order == Order::reverse ? lane == g.lanes - 1 : options.order == Order::shuffle ? lane == (int)(options.seed % g.lanes) : lane == 0;
}
EXPORT void sm_die(const char* what) {
  Worker* w = worker;
  die(w, std::string(what) + ": " + who(w, w->current) + where(__builtin_return_address(0)));
}
EXPORT void sm_tg_register(const void* p, ulong size, const char* name) {
  Worker* w = worker;
  ulong total = size;
  for (auto& r : w->regions) {
    if (r.p == p) return;
    total += r.length;
  }
  if (total > MAX_THREADGROUP_BYTES) {
    die(w, format("threadgroup memory of %lu bytes exceeds %lu ('%s' in '%s')", total, MAX_THREADGROUP_BYTES, name, w->d->kernel->name));
  }
  memset((void*)p, 0xCD, size);
  w->regions.push_back({(char*)p, size, name});
}
