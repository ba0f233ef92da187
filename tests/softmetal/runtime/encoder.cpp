// Compute and blit encoders: every call is checked as Metal's debug layer would, then recorded.
#include "metal.hpp"
#include <algorithm>
#include <cstring>
using namespace sm;
namespace {
Class cEncoder, cCompute, cBlit;
std::atomic<uint> encoders{0};

template <class T> id newEncoder(id buffer, Class c, bool concurrent) {
  auto* b = (CommandBuffer*)buffer;
  if (b->status >= committed) { fail("encoder made after commit"); return nullptr; }
  if (b->open) { fail("a second encoder while one is encoding to the command buffer"); return nullptr; }
  T* e = make<T>(c);
  e->buffer = b;
  retain(buffer);
  e->number = ++encoders;
  if constexpr (std::is_same<T, ComputeEncoder>()) e->concurrent = concurrent;
  b->open = e;
  counters.encoders++;
  return autorel(e);
}
bool encoding(Encoder* e, const char* what) {
  if (!e->ended) return true;
  fail("%s after endEncoding", what);
  return false;
}
// One argument of a dispatch. False when it is not bound right.
bool bindArgument(ComputeEncoder* e, Work& w, const Kernel& k, const Param& p) {
  Dispatch& d = *w.dispatch;
  if (p.kind == paramThreadgroup) {
    if (!e->threadgroupBytes[p.index]) { fail("threadgroup memory length not set at index %d for '%s' ('%s')", p.index, k.name, p.name); return false; }
    d.threadgroupBytes[p.index] = e->threadgroupBytes[p.index];
    return true;
  }
  if (p.kind != paramBuffer) return true;
  if (p.flags & paramConditional) {                   // exists only where its function constant is true
    auto v = w.values.find(p.condition);
    if (v == w.values.end() || v->second[0] == 0) return true;
  }
  BoundBuffer& s = e->slots[p.index];
  Binding& b = d.bindings[p.index];
  b.name = p.name;
  if (s.bytes) {
    if (!(p.flags & paramConstantSpace) && !(p.flags & paramReadOnly)) { fail("setBytes bound to the writable argument '%s' of '%s'", p.name, k.name); return false; }
    w.bytes.push_back(s.bytes);
    b.p = s.bytes->data();
    b.length = s.bytes->size();
  } else if (s.buffer) {
    ulong align = p.flags & paramConstantSpace ? 4 : std::min(16, p.align);
    if (s.offset % align) { fail("offset %lu of buffer(%d) is not a multiple of %lu, which '%s' of '%s' needs", s.offset, p.index, align, p.name, k.name); return false; }
    b.p = s.buffer->p + s.offset;
    b.length = s.buffer->length - s.offset;
    b.orderedAfter = e->scopeBarrier;
    auto r = e->resourceBarrier.find(s.buffer);
    if (r != e->resourceBarrier.end()) b.orderedAfter = std::max(b.orderedAfter, r->second);
    if (e->buffer->retainsReferences) e->buffer->hold(s.buffer);
  } else {
    fail("missing buffer binding at index %d for '%s' ('%s')", p.index, k.name, p.name);
    return false;
  }
  if (p.flags & paramReference && b.length < (ulong)p.size) {
    fail("argument '%s' of '%s' at buffer(%d) needs %d bytes, has %lu", p.name, k.name, p.index, p.size, b.length);
    return false;
  }
  return true;
}
enum class Grid { groups, threads, indirect };
void dispatch(ComputeEncoder* e, Size g, Size t, Grid kind, Buffer* indirect = nullptr, ulong offset = 0) {
  if (!encoding(e, "dispatch")) return;
  Pipeline* p = e->pipeline;
  if (!p) return fail("dispatch without a compute pipeline state");
  const Kernel& k = p->code->kernels[p->index];
  if (kind == Grid::indirect) g = {1, 1, 1};
  if (!g.width || !g.height || !g.depth || !t.width || !t.height || !t.depth) return fail("dispatch of '%s' with a dimension of 0", k.name);
  ulong threads = t.width * t.height * t.depth;
  if (threads > p->maxThreads) {
    return fail("threadsPerThreadgroup %lu·%lu·%lu = %lu must be at most maxTotalThreadsPerThreadgroup %lu ('%s')", t.width, t.height, t.depth, threads, p->maxThreads, k.name);
  }
  if (p->wholeSimdgroups && threads % SIMD) return fail("threadsPerThreadgroup %lu is not a multiple of %d, which the pipeline of '%s' promises", threads, SIMD, k.name);
  Work w;
  w.dispatch = std::make_unique<Dispatch>();
  w.code = p->code;
  w.values = p->values;
  w.encoder = e->number;
  w.generation = e->generation;
  w.concurrent = e->concurrent;
  Dispatch& d = *w.dispatch;
  d.kernel = &k;
  d.instrumented = p->code->instrumented;
  const ulong gs[3] = {g.width, g.height, g.depth}, ts[3] = {t.width, t.height, t.depth};
  for (int i = 0; i < 3; i++) {
    d.group[i] = ts[i];
    d.threads[i] = kind == Grid::threads ? gs[i] : gs[i] * ts[i];
    d.grid[i] = kind == Grid::threads ? (gs[i] + ts[i] - 1) / ts[i] : gs[i];
  }
  for (const Param* a = k.params; a->kind >= 0; a++) if (!bindArgument(e, w, k, *a)) return;
  ulong total = 0;
  for (ulong n : d.threadgroupBytes) total += n;
  if (total > MAX_THREADGROUP_BYTES) return fail("threadgroup memory of %lu bytes exceeds %lu ('%s')", total, MAX_THREADGROUP_BYTES, k.name);
  if (kind == Grid::indirect) {
    w.indirect = indirect->p + offset;
    e->buffer->hold(indirect);
  }
  d.id = newDispatch({e->number, e->count++, e->concurrent, k.name});
  e->buffer->hold(p);
  e->buffer->work.push_back(std::move(w));
  counters.dispatches++;
}
void setBuffer(ComputeEncoder* e, id b, ulong offset, ulong i) {
  if (!encoding(e, "setBuffer")) return;
  if (i >= MAX_BINDINGS) return fail("setBuffer: index %lu is over 30", i);
  if (b && !isKind(b, cBuffer, "setBuffer:")) return;
  if (b && offset >= ((Buffer*)b)->length) return fail("setBuffer: offset %lu is not inside the buffer of %lu bytes", offset, ((Buffer*)b)->length);
  e->slots[i] = {(Buffer*)b, offset, nullptr};
}
void barrier(ComputeEncoder* e, id const* resources, ulong n, bool scope) {
  if (!encoding(e, "memoryBarrier")) return;
  counters.barriers++;
  e->generation++;
  if (scope) e->scopeBarrier = e->count;
  for (ulong i = 0; i < n; i++) if (isKind(resources[i], cBuffer, "memoryBarrierWithResources:")) e->resourceBarrier[(Buffer*)resources[i]] = e->count;
}
void initCompute() {
  cCompute = defType<ComputeEncoder>("MTLComputeCommandEncoder", cEncoder);
  Class c = cCompute;
  def(cCommandBuffer, "computeCommandEncoder", [](id s, SEL) { return newEncoder<ComputeEncoder>(s, cCompute, false); });
  def(cCommandBuffer, "computeCommandEncoderWithDispatchType:", [](id s, SEL, ulong t) { return newEncoder<ComputeEncoder>(s, cCompute, t == 1); });
  
  def(c, "dispatchType", [](id s, SEL) -> ulong { return ((ComputeEncoder*)s)->concurrent; });
  def(c, "setComputePipelineState:", [](id s, SEL, id p) {
    if (encoding((Encoder*)s, "setComputePipelineState") && isKind(p, cPipeline, "setComputePipelineState:")) ((ComputeEncoder*)s)->pipeline = (Pipeline*)p;
  });
  def(c, "setBuffer:offset:atIndex:", [](id s, SEL, id b, ulong off, ulong i) { setBuffer((ComputeEncoder*)s, b, off, i); });
  def(c, "setBuffers:offsets:withRange:", [](id s, SEL, id const* b, const ulong* off, Range r) {
    for (ulong i = 0; i < r.length; i++) setBuffer((ComputeEncoder*)s, b[i], off[i], r.location + i);
  });
  def(c, "setBufferOffset:atIndex:", [](id s, SEL, ulong off, ulong i) {
    auto* e = (ComputeEncoder*)s;
    if (i >= MAX_BINDINGS || !e->slots[i].buffer) return fail("setBufferOffset: no buffer is bound at index %lu", i);
    setBuffer(e, e->slots[i].buffer, off, i);
  });
  def(c, "setBytes:length:atIndex:", [](id s, SEL, const void* p, ulong n, ulong i) {
    auto* e = (ComputeEncoder*)s;
    if (!encoding(e, "setBytes")) return;
    if (i >= MAX_BINDINGS) return fail("setBytes: index %lu is over 30", i);
    if (n == 0 || n > 4096) return fail("setBytes: length %lu is not from 1 to 4096", n);
    e->slots[i] = {nullptr, 0, std::make_shared<std::string>((const char*)p, n)};
  });
  def(c, "setThreadgroupMemoryLength:atIndex:", [](id s, SEL, ulong n, ulong i) {
    if (n % 16) return fail("threadgroup memory length %lu is not a multiple of 16", n);
    if (i >= MAX_BINDINGS) return fail("setThreadgroupMemoryLength: index %lu is over 30", i);
    ((ComputeEncoder*)s)->threadgroupBytes[i] = n;
  });
  def(c, "dispatchThreadgroups:threadsPerThreadgroup:", [](id s, SEL, Size g, Size t) { dispatch((ComputeEncoder*)s, g, t, Grid::groups); });
  def(c, "dispatchThreads:threadsPerThreadgroup:", [](id s, SEL, Size g, Size t) { dispatch((ComputeEncoder*)s, g, t, Grid::threads); });
  def(c, "dispatchThreadgroupsWithIndirectBuffer:indirectBufferOffset:threadsPerThreadgroup:", [](id s, SEL, id b, ulong off, Size t) {
    if (!isKind(b, cBuffer, "dispatchThreadgroupsWithIndirectBuffer:")) return;
    if (off % 4 || off + 12 > ((Buffer*)b)->length) return fail("indirect buffer offset %lu is not inside the buffer of %lu bytes, or not a multiple of 4", off, ((Buffer*)b)->length);
    dispatch((ComputeEncoder*)s, {1, 1, 1}, t, Grid::indirect, (Buffer*)b, off);
  });
  def(c, "memoryBarrierWithScope:", [](id s, SEL, ulong scope) {
    if (!(scope & 1)) return fail("memoryBarrierWithScope: %lu leaves out buffers, the only resources here", scope);
    barrier((ComputeEncoder*)s, nullptr, 0, true);
  });
  def(c, "memoryBarrierWithResources:count:", [](id s, SEL, id const* r, ulong n) { barrier((ComputeEncoder*)s, r, n, false); });
  def(c, "useResource:usage:", [](id s, SEL, id r, ulong) { if (isKind(r, cBuffer, "useResource:")) ((Encoder*)s)->buffer->hold(r); });
}
// ---- blits: each is a dispatch of its own to the race checks
struct Span { Buffer* buffer; ulong offset, size; };
bool inside(const Span& s, const char* what) {
  if (s.offset % 4 || s.size % 4) { fail("%s: offset %lu and size %lu must be multiples of 4", what, s.offset, s.size); return false; }
  if (s.size == 0) { fail("%s: size is 0", what); return false; }
  if (s.offset > s.buffer->length || s.size > s.buffer->length - s.offset) { fail("%s: %lu bytes at %lu are outside the buffer of %lu", what, s.size, s.offset, s.buffer->length); return false; }
  return true;
}
void record(BlitEncoder* e, std::function<void()> f, std::initializer_list<Buffer*> buffers) {
  for (Buffer* b : buffers) e->buffer->hold(b);
  Work w;
  w.encoder = e->number;
  w.action = [f] { f(); return std::string(); };
  e->buffer->work.push_back(std::move(w));
  counters.blits++;
}
void initBlit() {
  cBlit = defType<BlitEncoder>("MTLBlitCommandEncoder", cEncoder);
  def(cCommandBuffer, "blitCommandEncoder", [](id s, SEL) { return newEncoder<BlitEncoder>(s, cBlit, false); });
  def(cBlit, "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", [](id s, SEL, id from, ulong fo, id to, ulong t, ulong n) {
    auto* e = (BlitEncoder*)s;
    if (!encoding(e, "copyFromBuffer") || !isKind(from, cBuffer, "copyFromBuffer:") || !isKind(to, cBuffer, "copyFromBuffer:toBuffer:")) return;
    Span a{(Buffer*)from, fo, n}, b{(Buffer*)to, t, n};
    if (!inside(a, "copyFromBuffer") || !inside(b, "copyFromBuffer:toBuffer")) return;
    char *src = a.buffer->p + fo, *dst = b.buffer->p + t;
    if (src < dst + n && dst < src + n) return fail("copyFromBuffer: source and destination overlap");
    record(e, [=] { memcpy(dst, src, n); forgetShadow(dst, n); }, {a.buffer, b.buffer});
  });
  def(cBlit, "fillBuffer:range:value:", [](id s, SEL, id to, Range r, unsigned char v) {
    auto* e = (BlitEncoder*)s;
    if (!encoding(e, "fillBuffer") || !isKind(to, cBuffer, "fillBuffer:")) return;
    Buffer* b = (Buffer*)to;
    if (!inside({b, r.location, r.length}, "fillBuffer")) return;
    record(e, [=] { memset(b->p + r.location, v, r.length); forgetShadow(b->p + r.location, r.length); }, {b});
  });
  def(cBlit, "synchronizeResource:", [](id, SEL, id r) { if (isKind(r, cBuffer, "synchronizeResource:") && ((Buffer*)r)->storage() != storageManaged) fail("synchronizeResource: of a buffer whose storage is not managed"); });
}
}  // namespace
namespace sm {
Encoder::~Encoder() {
  if (!ended) {
    fail("command encoder released without endEncoding");
    if (buffer) buffer->open = nullptr;
  }
  if (buffer) release((id)buffer);
}
void initEncoders() {
  cEncoder = defType<Encoder>("MTLCommandEncoder", cNSObject);
  for (const char* s : {"setLabel:", "pushDebugGroup:", "insertDebugSignpost:"}) def(cEncoder, s, [](id, SEL, id) {});
  def(cEncoder, "popDebugGroup", [](id, SEL) {});
  def(cEncoder, "endEncoding", [](id s, SEL) {
    auto* e = (Encoder*)s;
    if (!encoding(e, "endEncoding")) return;
    e->ended = true;
    e->buffer->open = nullptr;
  });
  initCompute();
  initBlit();
}
}  // namespace sm
