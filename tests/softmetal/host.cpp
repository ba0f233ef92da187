// Host code for the tests: plain metal-cpp behind a C interface. Nothing here knows that Metal is software.
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#define API extern "C" __attribute__((visibility("default")))
namespace {
struct Pool { NS::AutoreleasePool* p = NS::AutoreleasePool::alloc()->init(); ~Pool() { p->release(); } };
struct Host {
  MTL::Device* device;
  MTL::CommandQueue* queue;
  MTL::Library* library;
  MTL::CommandBuffer* buffer;
  MTL::ComputeCommandEncoder* compute;
  MTL::BlitCommandEncoder* blit;
};
NS::String* string(const char* s) { return NS::String::string(s, NS::UTF8StringEncoding); }
void write(char* out, size_t capacity, const char* text) {
  if (!capacity) return;
  strncpy(out, text, capacity - 1);
  out[capacity - 1] = 0;
}
void write(char* out, size_t capacity, NS::Error* e) { write(out, capacity, e ? e->localizedDescription()->utf8String() : "unknown"); }
}
API Host* host_open(const char* source, int32_t fastMath, uint32_t version, char* err, size_t cap) {
  Pool pool;
  auto* h = new Host();
  h->device = MTL::CreateSystemDefaultDevice();
  h->queue = h->device->newCommandQueue();
  NS::Error* e = nullptr;
  auto* o = MTL::CompileOptions::alloc()->init();
  o->setFastMathEnabled(fastMath);
  if (version) o->setLanguageVersion((MTL::LanguageVersion)version);
  h->library = h->device->newLibrary(string(source), o, &e);
  o->release();
  if (h->library) return h;
  write(err, cap, e);
  h->queue->release();
  h->device->release();
  delete h;
  return nullptr;
}
API void host_close(Host* h) { h->library->release(); h->queue->release(); h->device->release(); delete h; }
// Function constants: pairs of index and value (uint where `wide`, else bool).
API MTL::ComputePipelineState* host_pipeline(Host* h, const char* name, int32_t index, uint32_t value, int32_t wide, char* err, size_t cap) {
  Pool pool;
  NS::Error* e = nullptr;
  MTL::Function* f;
  if (index >= 0) {
    auto* v = MTL::FunctionConstantValues::alloc()->init();
    bool b = value;
    v->setConstantValue(wide ? (void*)&value : (void*)&b, wide ? MTL::DataTypeUInt : MTL::DataTypeBool, NS::UInteger(index));
    f = h->library->newFunction(string(name), v, &e);
    v->release();
  } else f = h->library->newFunction(string(name));
  if (!f) { write(err, cap, e ? e->localizedDescription()->utf8String() : "no such function"); return nullptr; }
  auto* p = h->device->newComputePipelineState(f, &e);
  f->release();
  if (!p) write(err, cap, e);
  return p;
}
API uint32_t host_max_threads(MTL::ComputePipelineState* p) { return (uint32_t)p->maxTotalThreadsPerThreadgroup(); }
API uint32_t host_execution_width(MTL::ComputePipelineState* p) { return (uint32_t)p->threadExecutionWidth(); }
API uint64_t host_device_sizes(Host* h) { MTL::Size s = h->device->maxThreadsPerThreadgroup(); return s.width + s.height + s.depth; }
API void host_constant_string(char* out, size_t cap) { NS::String* s = MTLSTR("a constant string"); write(out, cap, s->utf8String()); }
API int32_t host_os(int32_t major) {
  Pool pool;
  auto* p = NS::ProcessInfo::processInfo();
  NS::OperatingSystemVersion v{major, 0, 0};
  return p->isOperatingSystemAtLeastVersion(v) ? (int32_t)p->operatingSystemVersion().majorVersion : -1;
}
API MTL::Buffer* host_buffer(Host* h, const void* p, uint64_t n, int32_t isPrivate) {
  auto mode = isPrivate ? MTL::ResourceStorageModePrivate : MTL::ResourceStorageModeShared;
  return p ? h->device->newBuffer(p, n, mode) : h->device->newBuffer(n, mode);
}
API void* host_pages(uint64_t n) { return aligned_alloc(16384, n); }
API void host_free(void* p) { free(p); }
API MTL::Buffer* host_no_copy(Host* h, void* p, uint64_t n) { return h->device->newBuffer(p, n, MTL::ResourceStorageModeShared, nullptr); }
API void* host_contents(MTL::Buffer* b) { return b->contents(); }
API uint64_t host_length(MTL::Buffer* b) { return b->length(); }
API void host_release(NS::Object* o) { o->release(); }

API void host_begin(Host* h) { Pool pool; h->buffer = h->queue->commandBuffer()->retain(); }
API void host_compute(Host* h, int32_t concurrent) {
  Pool pool;
  auto* e = concurrent ? h->buffer->computeCommandEncoder(MTL::DispatchTypeConcurrent) : h->buffer->computeCommandEncoder();
  h->compute = e ? e->retain() : nullptr;
}
API void host_compute_twice(Host* h) { Pool pool; h->buffer->computeCommandEncoder(); }
API void host_use(Host* h, MTL::ComputePipelineState* p) { h->compute->setComputePipelineState(p); }
API void host_set(Host* h, MTL::Buffer* b, uint64_t offset, uint32_t i) { h->compute->setBuffer(b, offset, i); }
API void host_bytes(Host* h, const void* p, uint64_t n, uint32_t i) { h->compute->setBytes(p, n, i); }
API void host_threadgroup(Host* h, uint64_t n, uint32_t i) { h->compute->setThreadgroupMemoryLength(n, i); }
API void host_groups(Host* h, uint32_t x, uint32_t y, uint32_t z, uint32_t a, uint32_t b, uint32_t c) { h->compute->dispatchThreadgroups(MTL::Size(x, y, z), MTL::Size(a, b, c)); }
API void host_threads(Host* h, uint32_t x, uint32_t a) { h->compute->dispatchThreads(MTL::Size(x, 1, 1), MTL::Size(a, 1, 1)); }
API void host_indirect(Host* h, MTL::Buffer* b, uint64_t offset, uint32_t a) { h->compute->dispatchThreadgroups(b, offset, MTL::Size(a, 1, 1)); }
API void host_barrier(Host* h, MTL::Buffer* b) {
  if (!b) return h->compute->memoryBarrier(MTL::BarrierScopeBuffers);
  const MTL::Resource* r[] = {b};
  h->compute->memoryBarrier(r, 1);
}
API void host_end(Host* h) { h->compute->endEncoding(); h->compute->release(); h->compute = nullptr; }
API void host_blit(Host* h) { Pool pool; h->blit = h->buffer->blitCommandEncoder()->retain(); }
API void host_copy(Host* h, MTL::Buffer* a, uint64_t ao, MTL::Buffer* b, uint64_t bo, uint64_t n) { h->blit->copyFromBuffer(a, ao, b, bo, n); }
API void host_fill(Host* h, MTL::Buffer* a, uint64_t offset, uint64_t n, uint8_t v) { h->blit->fillBuffer(a, NS::Range::Make(offset, n), v); }
API void host_end_blit(Host* h) { h->blit->endEncoding(); h->blit->release(); h->blit = nullptr; }
API void host_commit(Host* h) { h->buffer->commit(); }
API int32_t host_status(Host* h) { return (int32_t)h->buffer->status(); }
API int32_t host_error(Host* h, char* err, size_t cap) {
  Pool pool;
  NS::Error* e = h->buffer->error();
  if (!e) return 0;
  write(err, cap, e);
  return (int32_t)e->code();
}
// Waits; 1 when the work completed. GPU seconds in *seconds.
API int32_t host_wait(Host* h, double* seconds, char* err, size_t cap) {
  Pool pool;
  h->buffer->waitUntilCompleted();
  int ok = h->buffer->status() == MTL::CommandBufferStatusCompleted;
  if (!ok) write(err, cap, h->buffer->error());
  *seconds = h->buffer->GPUEndTime() - h->buffer->GPUStartTime();
  h->buffer->release();
  h->buffer = nullptr;
  return ok;
}
// Drops the command buffer without waiting.
API void host_drop(Host* h) { h->buffer->release(); h->buffer = nullptr; }
API MTL::SharedEvent* host_event(Host* h) { return h->device->newSharedEvent(); }
API uint64_t host_event_value(MTL::SharedEvent* e) { return e->signaledValue(); }
API void host_signal(Host* h, MTL::SharedEvent* e, uint64_t v) { h->buffer->encodeSignalEvent(e, v); }
API void host_await(Host* h, MTL::SharedEvent* e, uint64_t v) { h->buffer->encodeWait(e, v); }
// Commits with a completed handler instead of a wait.
API int32_t host_handler(Host* h) {
  Pool pool;
  auto* done = new std::atomic<int>(0);
  h->buffer->addCompletedHandler([done](MTL::CommandBuffer* b) { *done = (int)b->status(); });
  h->buffer->commit();
  while (*done == 0) {}
  return *done;
}
API MTL::ResidencySet* host_residency(Host* h, MTL::Buffer* b, int32_t commit) {
  Pool pool;
  NS::Error* e = nullptr;
  auto* d = MTL::ResidencySetDescriptor::alloc();
  auto* s = h->device->newResidencySet(d, &e);
  if (s) {
    s->addAllocation(b);
    if (commit) s->commit();
    h->queue->addResidencySet(s);
  }
  if (d) d->release();
  return s;
}
// Writes an archive of one function, or makes a pipeline that must come from it. 1 on success.
API int32_t host_archive(Host* h, const char* path, const char* name, int32_t store, char* err, size_t cap) {
  Pool pool;
  NS::Error* e = nullptr;
  auto* url = NS::URL::fileURLWithPath(string(path));
  auto* d = MTL::BinaryArchiveDescriptor::alloc()->init();
  if (!store) d->setUrl(url);
  auto* archive = h->device->newBinaryArchive(d, &e);
  d->release();
  if (!archive) { write(err, cap, e); return 0; }
  auto* f = h->library->newFunction(string(name));
  auto* p = MTL::ComputePipelineDescriptor::alloc()->init();
  p->setComputeFunction(f);
  bool ok;
  if (store) ok = archive->addComputePipelineFunctions(p, &e) && archive->serializeToURL(url, &e);
  else {
    const NS::Object* list[] = {archive};
    p->setBinaryArchives(NS::Array::array(list, 1));
    auto* s = h->device->newComputePipelineState(p, MTL::PipelineOptionFailOnBinaryArchiveMiss, nullptr, &e);
    ok = s != nullptr;
    if (s) s->release();
  }
  if (!ok) write(err, cap, e);
  p->release();
  f->release();
  archive->release();
  return ok;
}
API int32_t host_can_capture() { Pool pool; return MTL::CaptureManager::sharedCaptureManager()->supportsDestination(MTL::CaptureDestinationDeveloperTools); }
API void host_autorelease_without_pool(Host* h) { h->queue->commandBuffer(); }
API void host_use_after_release(Host* h) { auto* b = h->device->newBuffer(16, MTL::ResourceStorageModeShared); b->release(); b->length(); }
