// Queues and command buffers. Committed work runs when someone waits for it (or keeps asking for its status), on the thread
// that waits: a host that reads results without waiting reads what was there before.
#include "metal.hpp"
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
using namespace sm;
namespace sm { Class cQueue, cCommandBuffer; }
namespace {
constexpr int POLLS = 64;            // status reads after which committed work gets to run
std::recursive_mutex executor;
std::mutex pendingLock;
std::deque<CommandBuffer*> pending;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

const char* errorText(uint code) {
  switch (code) {
    case 2: return "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)";
    case 3: return "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)";
    case 8: return "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)";
    case 9: return "Invalid Resource (00000009:kIOGPUCommandBufferCallbackErrorInvalidResource)";
    default: return "Internal Error (0000000e:kIOGPUCommandBufferCallbackErrorInternal)";
  }
}
void fails(CommandBuffer* c, uint code, const std::string& text) {
  if (!c->error) c->error = err("MTLCommandBufferErrorDomain", code, text);
}
std::string runWork(Work& w) {
  if (w.action) return w.action();
  for (const Constant* c = w.code->constants; c->name; c++) {
    auto v = w.values.find(c->index);
    *c->defined = v != w.values.end();
    memset(c->value, 0, c->size);
    if (*c->defined) memcpy(c->value, v->second.data(), std::min<size_t>(c->size, v->second.size()));
  }
  Dispatch& d = *w.dispatch;
  if (w.indirect) {
    memcpy(d.grid, w.indirect, sizeof d.grid);
    for (int i = 0; i < 3; i++) d.threads[i] = d.grid[i] * d.group[i];
    if (!d.grid[0] || !d.grid[1] || !d.grid[2]) return "";
  }
  return runDispatch(d);
}
// Dispatches of a concurrent encoder between two barriers have no order: other orders than forward disturb it.
void disturb(std::vector<Work*>& order) {
  if (options.order == Order::forward) return;
  std::mt19937 random(options.seed);
  for (size_t i = 0, j; i < order.size(); i = j) {
    for (j = i + 1; j < order.size() && order[i]->concurrent && order[j]->concurrent && order[j]->encoder == order[i]->encoder &&
                    order[j]->generation == order[i]->generation; j++) {}
    if (options.order == Order::reverse) std::reverse(order.begin() + i, order.begin() + j);
    else std::shuffle(order.begin() + i, order.begin() + j, random);
  }
}
void execute(CommandBuffer* c, uint injected) {
  c->status = scheduled;
  for (void* h : c->scheduledHandlers) { (*(void (**)(void*, id))((char*)h + 16))(h, c); blockRelease(h); }
  c->scheduledHandlers.clear();
  c->start = now();
  std::vector<Work*> order;
  for (auto& w : c->work) order.push_back(&w);
  disturb(order);
  size_t count = injected ? order.size() / 2 : order.size();
  for (size_t i = 0; i < count && !c->error; i++) {
    std::string e = runWork(*order[i]);
    if (!e.empty()) fails(c, 3, e);
  }
  if (injected) fails(c, injected, errorText(injected));
  if (!c->error) {
    for (id h : c->held) {
      if (h->isa == cBuffer && !((Buffer*)h)->slackIntact()) {
        fails(c, 3, format("out-of-bounds write: bytes just past the end of a buffer of %lu bytes were changed", ((Buffer*)h)->length));
      }
    }
  }
  c->end = now();
  c->status = c->error ? failed : completed;
  for (void* h : c->completedHandlers) { (*(void (**)(void*, id))((char*)h + 16))(h, c); blockRelease(h); }
  c->completedHandlers.clear();
}
std::map<CommandBuffer*, uint> injections;
// Takes the first pending command buffer that `wanted` accepts, and runs it.
CommandBuffer* runNext(const std::function<bool(CommandBuffer*)>& wanted) {
  CommandBuffer* c = nullptr;
  uint injected = 0;
  {
    std::lock_guard<std::mutex> l(pendingLock);
    for (auto i = pending.begin(); i != pending.end(); ++i) {
      if (!wanted(*i)) continue;
      c = *i;
      pending.erase(i);
      break;
    }
    auto i = injections.find(c);
    if (c && i != injections.end()) { injected = i->second; injections.erase(i); }
  }
  if (c) execute(c, injected);
  return c;
}
std::set<Queue*> busy;               // queues whose command buffer waits for an event
}  // namespace

namespace sm {
void drain(CommandBuffer* until) {
  std::lock_guard<std::recursive_mutex> l(executor);
  retain(until);
  while (until->status < completed) {
    CommandBuffer* c = runNext([&](CommandBuffer* c) { return c->queue == until->queue; });
    if (!c) break;
    release((id)c);
  }
  release((id)until);
}
bool drainUntil(Event* event, ulong value) {
  std::lock_guard<std::recursive_mutex> l(executor);
  while (event->value < value) {
    CommandBuffer* c = runNext([](CommandBuffer* c) { return !busy.count(c->queue); });
    if (!c) break;
    release((id)c);
  }
  // The host may signal a shared event yet.
  for (int i = 0; i < 200 && event->value < value && event->isa == cSharedEvent; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return event->value >= value;
}
CommandBuffer::~CommandBuffer() {
  if (open) fail("command buffer released while an encoder is encoding");
  for (id h : held) release(h);
  if (error) release((id)error);
}

static void commit(CommandBuffer* c) {
  if (c->status >= committed) return fail("commit: the command buffer is committed already");
  if (c->open) return fail("commit: an encoder is still encoding (endEncoding is missing)");
  counters.commits++;
  c->status = committed;
  retain((id)c);
  uint code = 0;
  bool handlers = !c->completedHandlers.empty();
  {
    std::lock_guard<std::mutex> l(pendingLock);
    if (takeInjectedError(&code)) injections[c] = code ? code : 1;
    pending.push_back(c);
  }
  if (!handlers) return;
  retain((id)c);                     // a handler is called without anyone waiting, on a thread of Metal's own
  std::thread([c] { drain(c); release((id)c); }).detach();
}
static void signalOrWait(CommandBuffer* c, id event, ulong value, bool signal) {
  if (!isKind(event, cEvent, signal ? "encodeSignalEvent:" : "encodeWaitForEvent:")) return;
  if (c->open) return fail("%s while an encoder is encoding", signal ? "encodeSignalEvent" : "encodeWaitForEvent");
  if (c->status >= committed) return fail("%s after commit", signal ? "encodeSignalEvent" : "encodeWaitForEvent");
  c->hold(event);
  Event* e = (Event*)event;
  Work w;
  if (signal) w.action = [e, value]() -> std::string {
    if (value <= e->value) return format("signal of %lu, but the event stands at %lu", value, e->value);
    e->value = value;
    return "";
  };
  else w.action = [e, value, c]() -> std::string {
    busy.insert(c->queue);
    bool ok = drainUntil(e, value);
    busy.erase(c->queue);
    return ok ? "" : format("wait for event value %lu that nothing signals (it stands at %lu)", value, e->value);
  };
  c->work.push_back(std::move(w));
}
void initCommands() {
  struct Q : Queue { ~Q() { for (id r : residency) release(r); } };
  cQueue = defType<Q>("MTLCommandQueue", cNSObject);
  def(cDevice, "newCommandQueue", [](id, SEL) { return (id)make<Queue>(cQueue); });
  def(cDevice, "newCommandQueueWithMaxCommandBufferCount:", [](id, SEL, ulong) { return (id)make<Queue>(cQueue); });
  def(cQueue, "setLabel:", [](id, SEL, id) {});
  static auto create = [](id queue, bool retains) {
    CommandBuffer* c = make<CommandBuffer>(cCommandBuffer);
    c->queue = (Queue*)retain(queue);
    c->held.push_back(queue);
    c->retainsReferences = retains;
    counters.commandBuffers++;
    return (id)autorel(c);
  };
  def(cQueue, "commandBuffer", [](id s, SEL) { return create(s, true); });
  def(cQueue, "commandBufferWithUnretainedReferences", [](id s, SEL) { return create(s, false); });
  cCommandBuffer = defType<CommandBuffer>("MTLCommandBuffer", cNSObject);
  Class c = cCommandBuffer;
  def(c, "setLabel:", [](id, SEL, id) {});
  def(c, "enqueue", [](id s, SEL) { int none = notEnqueued; ((CommandBuffer*)s)->status.compare_exchange_strong(none, enqueued); });
  def(c, "commit", [](id s, SEL) { commit((CommandBuffer*)s); });
  def(c, "waitUntilCompleted", [](id s, SEL) {
    auto* c = (CommandBuffer*)s;
    if (c->status < committed) return fail("waitUntilCompleted before commit");
    counters.waits++;
    drain(c);
  });
  def(c, "waitUntilScheduled", [](id s, SEL) { if (((CommandBuffer*)s)->status < committed) fail("waitUntilScheduled before commit"); });
  def(c, "status", [](id s, SEL) -> ulong {
    auto* c = (CommandBuffer*)s;
    int status = c->status;
    if ((status == committed || status == scheduled) && ++c->polls > POLLS) drain(c);
    return (ulong)c->status;
  });
  def(c, "error", [](id s, SEL) { auto* c = (CommandBuffer*)s; return c->status == failed ? (id)c->error : nullptr; });
  static auto timed = [](CommandBuffer* c, double t) { return c->status >= completed ? t : 0.0; };
  def(c, "GPUStartTime", [](id s, SEL) { auto* c = (CommandBuffer*)s; return timed(c, c->start); });
  def(c, "GPUEndTime", [](id s, SEL) { auto* c = (CommandBuffer*)s; return timed(c, c->end); });
  def(c, "kernelStartTime", [](id s, SEL) { auto* c = (CommandBuffer*)s; return timed(c, c->start); });
  def(c, "kernelEndTime", [](id s, SEL) { auto* c = (CommandBuffer*)s; return timed(c, c->start); });
  static auto handler = [](CommandBuffer* c, std::vector<void*>& list, void* block) {
    if (c->status >= committed) return fail("handler added after commit");
    list.push_back(blockCopy(block));
  };
  def(c, "addCompletedHandler:", [](id s, SEL, void* b) { auto* c = (CommandBuffer*)s; handler(c, c->completedHandlers, b); });
  def(c, "addScheduledHandler:", [](id s, SEL, void* b) { auto* c = (CommandBuffer*)s; handler(c, c->scheduledHandlers, b); });
  def(c, "encodeSignalEvent:value:", [](id s, SEL, id e, ulong v) { signalOrWait((CommandBuffer*)s, e, v, true); });
  def(c, "encodeWaitForEvent:value:", [](id s, SEL, id e, ulong v) { signalOrWait((CommandBuffer*)s, e, v, false); });
}
}  // namespace sm
