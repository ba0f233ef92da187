// Device, buffers, events, residency sets, capture.
#include "metal.hpp"
#include <algorithm>
#include <cstring>
#include <mutex>
#include <sys/mman.h>
using namespace sm;
namespace {
constexpr ulong GPU_PAGE = 16384, GUARD = 1 << 20, SLACK = 16;
constexpr unsigned char CANARY = 0xFB;
std::atomic<ulong> allocated;
Class cResidencySet, cResidencyDescriptor, cCapture, cArchitecture;
id device;

Buffer* newBuffer(ulong length, ulong options_) {
  if (length == 0) { fail("newBuffer: length is 0"); return nullptr; }
  if (length > options.maxBuffer) { fail("newBuffer: length %lu is over maxBufferLength %lu", length, options.maxBuffer); return nullptr; }
  if ((options_ >> 4 & 15) > storagePrivate) { fail("newBuffer: storage mode %lu is not one for buffers", options_ >> 4 & 15); return nullptr; }
  Buffer* b = make<Buffer>(cBuffer);
  b->length = length;
  b->options = options_;
  size_t data = (length + 4095) & ~4095ul;
  b->mapLength = GUARD + data + GUARD;
  b->map = (char*)mmap(nullptr, b->mapLength, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (b->map == MAP_FAILED || mprotect(b->map + GUARD, data, PROT_READ | PROT_WRITE)) { b->map = nullptr; release((id)b); return nullptr; }
  b->p = b->map + GUARD;
  if (!options.pageAlign) {
    b->p += data - ((length + SLACK - 1) & ~(SLACK - 1));       // an overrun faults at once
    memset(b->p + length, CANARY, (SLACK - length % SLACK) % SLACK);
  }
  addGuard(b->map, b->map + GUARD, "before the start of a buffer");
  addGuard(b->map + GUARD + data, b->map + b->mapLength, "past the end of a buffer");
  allocated += length;
  counters.buffers++;
  counters.bufferBytes += length;
  return b;
}
void initBuffers() {
  cBuffer = defType<Buffer>("MTLBuffer", cNSObject);
  def(cBuffer, "contents", [](id s, SEL) -> void* {
    Buffer* b = (Buffer*)s;
    if (b->storage() == storagePrivate) { fail("contents of a buffer with private storage"); return nullptr; }
    return b->p;
  });
  def(cBuffer, "length", [](id s, SEL) { return ((Buffer*)s)->length; });
  def(cBuffer, "allocatedSize", [](id s, SEL) { return ((Buffer*)s)->length; });
  def(cBuffer, "storageMode", [](id s, SEL) { return ((Buffer*)s)->storage(); });
  def(cBuffer, "resourceOptions", [](id s, SEL) { return ((Buffer*)s)->options; });
  def(cBuffer, "gpuAddress", [](id s, SEL) { return (ulong)((Buffer*)s)->p; });
  def(cBuffer, "setLabel:", [](id s, SEL, id l) { ((Buffer*)s)->label = l ? utf8(l) : ""; });
  def(cBuffer, "label", [](id s, SEL) { return (id)autorel(str(((Buffer*)s)->label)); });
  def(cBuffer, "device", [](id, SEL) { return device; });
  def(cBuffer, "setPurgeableState:", [](id, SEL, ulong) -> ulong { return 2; });
  def(cBuffer, "didModifyRange:", [](id s, SEL, Range) { if (((Buffer*)s)->storage() != storageManaged) fail("didModifyRange: of a buffer whose storage is not managed"); });
  def(cDevice, "newBufferWithLength:options:", [](id, SEL, ulong n, ulong o) { return (id)newBuffer(n, o); });
  def(cDevice, "newBufferWithBytes:length:options:", [](id, SEL, const void* p, ulong n, ulong o) -> id {
    if ((o >> 4 & 15) == storagePrivate) { fail("newBufferWithBytes: into private storage"); return nullptr; }
    Buffer* b = newBuffer(n, o);
    if (b) memcpy(b->p, p, n);
    return b;
  });
  def(cDevice, "newBufferWithBytesNoCopy:length:options:deallocator:", [](id, SEL, void* p, ulong n, ulong o, void* block) -> id {
    if ((ulong)p % GPU_PAGE || n % GPU_PAGE || n == 0) {
      fail("newBufferWithBytesNoCopy: pointer %p and length %lu must be multiples of the page size (%lu)", p, n, GPU_PAGE);
      return nullptr;
    }
    if (n > options.maxBuffer) { fail("newBufferWithBytesNoCopy: length %lu is over maxBufferLength %lu", n, options.maxBuffer); return nullptr; }
    if ((o >> 4 & 15) != storageShared) { fail("newBufferWithBytesNoCopy: storage must be shared"); return nullptr; }
    Buffer* b = make<Buffer>(cBuffer);
    b->p = (char*)p;
    b->length = n;
    b->options = o;
    b->deallocator = blockCopy(block);
    counters.noCopyBuffers++;
    return b;
  });
}
void initEvents() {
  cEvent = defType<Event>("MTLEvent", cNSObject);
  cSharedEvent = defType<Event>("MTLSharedEvent", cEvent);
  def(cEvent, "setLabel:", [](id, SEL, id) {});
  def(cDevice, "newEvent", [](id, SEL) { return (id)make<Event>(cEvent); });
  def(cDevice, "newSharedEvent", [](id, SEL) { return (id)make<Event>(cSharedEvent); });
  def(cSharedEvent, "signaledValue", [](id s, SEL) { return ((Event*)s)->value; });
  def(cSharedEvent, "setSignaledValue:", [](id s, SEL, ulong v) {
    Event* e = (Event*)s;
    if (v < e->value) return fail("setSignaledValue: %lu is below the present value %lu", v, e->value);
    e->value = v;
  });
  def(cSharedEvent, "waitUntilSignaledValue:timeoutMS:", [](id s, SEL, ulong v, ulong) -> bool { return drainUntil((Event*)s, v); }, 12);
}
void initResidency() {
  cResidencyDescriptor = defType<Obj>("MTLResidencySetDescriptor", cNSObject);
  cResidencySet = defType<ResidencySet>("MTLResidencySet", cNSObject);
  defClassMethod(cResidencyDescriptor, "alloc", [](id, SEL) { return (id)make<Obj>(cResidencyDescriptor); }, 15);
  def(cResidencyDescriptor, "setLabel:", [](id, SEL, id) {});
  def(cResidencyDescriptor, "setInitialCapacity:", [](id, SEL, ulong) {});
  def(cDevice, "newResidencySetWithDescriptor:error:", [](id, SEL, id d, id*) -> id {
    if (!isKind(d, cResidencyDescriptor, "newResidencySetWithDescriptor:")) return nullptr;
    return make<ResidencySet>(cResidencySet);
  }, 15);
  static auto add = [](ResidencySet* r, id a) {
    if (!isKind(a, cBuffer, "addAllocation:")) return;
    if (r->staged.insert(a).second) { retain(a); r->dirty = true; }
  };
  static auto remove = [](ResidencySet* r, id a) { if (r->staged.erase(a)) { r->resident.erase(a); release(a); r->dirty = true; } };
  def(cResidencySet, "addAllocation:", [](id s, SEL, id a) { add((ResidencySet*)s, a); });
  def(cResidencySet, "addAllocations:count:", [](id s, SEL, id const* a, ulong n) { for (ulong i = 0; i < n; i++) add((ResidencySet*)s, a[i]); });
  def(cResidencySet, "removeAllocation:", [](id s, SEL, id a) { remove((ResidencySet*)s, a); });
  def(cResidencySet, "removeAllocations:count:", [](id s, SEL, id const* a, ulong n) { for (ulong i = 0; i < n; i++) remove((ResidencySet*)s, a[i]); });
  def(cResidencySet, "removeAllAllocations", [](id s, SEL) { auto* r = (ResidencySet*)s; while (!r->staged.empty()) remove(r, *r->staged.begin()); });
  def(cResidencySet, "containsAllocation:", [](id s, SEL, id a) -> bool { return ((ResidencySet*)s)->staged.count(a); });
  def(cResidencySet, "allocationCount", [](id s, SEL) -> ulong { return ((ResidencySet*)s)->staged.size(); });
  def(cResidencySet, "allocatedSize", [](id s, SEL) -> ulong { ulong n = 0; for (id a : ((ResidencySet*)s)->resident) n += ((Buffer*)a)->length; return n; });
  def(cResidencySet, "commit", [](id s, SEL) { auto* r = (ResidencySet*)s; r->resident = r->staged; r->dirty = false; });
  static auto needsCommit = [](id s, const char* what) { if (((ResidencySet*)s)->dirty) fail("%s of a residency set whose changes are not committed", what); };
  def(cResidencySet, "requestResidency", [](id s, SEL) { needsCommit(s, "requestResidency"); });
  def(cResidencySet, "endResidency", [](id, SEL) {});
  def(cResidencySet, "setLabel:", [](id, SEL, id) {});
  def(cQueue, "addResidencySet:", [](id s, SEL, id r) {
    if (!isKind(r, cResidencySet, "addResidencySet:")) return;
    needsCommit(r, "addResidencySet:");
    if (((Queue*)s)->residency.insert(r).second) retain(r);
  }, 15);
  def(cQueue, "removeResidencySet:", [](id s, SEL, id r) { if (((Queue*)s)->residency.erase(r)) release(r); }, 15);
  def(cCommandBuffer, "useResidencySet:", [](id s, SEL, id r) { if (isKind(r, cResidencySet, "useResidencySet:")) { needsCommit(r, "useResidencySet:"); ((CommandBuffer*)s)->hold(r); } }, 15);
}
// No capture tool is attached to a software GPU.
void initCapture() {
  cCapture = defType<Obj>("MTLCaptureManager", cNSObject);
  defClassMethod(cCapture, "sharedCaptureManager", [](id, SEL) { static Obj* m = make<Obj>(cCapture); return (id)m; });
  def(cCapture, "supportsDestination:", [](id, SEL, long) { return false; });
  def(cCapture, "isCapturing", [](id, SEL) { return false; });
  def(cCapture, "startCaptureWithDescriptor:error:", [](id, SEL, id, id* e) { setError(e, err("MTLCaptureError", 1, "Capturing is not supported.")); return false; });
  def(cCapture, "stopCapture", [](id, SEL) {});
}
}  // namespace

namespace sm {
Class cBuffer, cDevice, cEvent, cSharedEvent;
bool isKind(id o, Class wanted, const char* what) {
  if (!o) { fail("%s nil", what); return false; }
  for (Class c = o->isa; c; c = c->super) if (c == wanted) return true;
  fail("%s an object of class %s where %s is needed", what, o->isa->name, wanted->name);
  return false;
}
bool Buffer::slackIntact() const {
  if (!map || p == map + GUARD) return true;      // page-aligned: no canary was written
  for (ulong i = 0; i < (SLACK - length % SLACK) % SLACK; i++) if ((unsigned char)p[length + i] != CANARY) return false;
  return true;
}
Buffer::~Buffer() {
  forgetShadow(p, length);
  if (deallocator) {
    typedef void (*Invoke)(void*, void*, ulong);
    (*(Invoke*)((char*)deallocator + 16))(deallocator, p, length);
    blockRelease(deallocator);
  }
  if (!map) return;
  allocated -= length;
  dropGuard(map);
  dropGuard(map + mapLength - GUARD);
  mprotect(map, mapLength, PROT_NONE);                  // a late use faults
  madvise(map, mapLength, MADV_DONTNEED);
  addGuard(map, map + mapLength, "use of a released buffer");
}
void initDevice() {
  cDevice = defType<Device>("MTLDevice", cNSObject);
  cArchitecture = defType<Obj>("MTLArchitecture", cNSObject);
  def(cArchitecture, "name", [](id, SEL) { return (id)autorel(str("softmetal_g13")); });
  def(cDevice, "name", [](id, SEL) { return (id)autorel(str("Software Metal")); });
  def(cDevice, "architecture", [](id, SEL) { static Obj* a = make<Obj>(cArchitecture); return (id)a; }, 14);
  def(cDevice, "registryID", [](id, SEL) -> ulong { return 1; });
  def(cDevice, "hasUnifiedMemory", [](id, SEL) { return true; });
  def(cDevice, "isLowPower", [](id, SEL) { return false; });
  def(cDevice, "isHeadless", [](id, SEL) { return true; });
  def(cDevice, "isRemovable", [](id, SEL) { return false; });
  // Apple7 (M1): families Apple1…7, Common1…3, Mac2, Metal3.
  def(cDevice, "supportsFamily:", [](id, SEL, long f) { return (f >= 1001 && f <= 1007) || (f >= 3001 && f <= 3003) || f == 2002 || f == 5001; });
  def(cDevice, "maxThreadgroupMemoryLength", [](id, SEL) -> ulong { return MAX_THREADGROUP_BYTES; });
  def(cDevice, "maxThreadsPerThreadgroup", [](id, SEL) { return Size{MAX_THREADS, MAX_THREADS, MAX_THREADS}; });
  def(cDevice, "recommendedMaxWorkingSetSize", [](id, SEL) -> ulong { return 12ul << 30; });
  def(cDevice, "maxBufferLength", [](id, SEL) -> ulong { return options.maxBuffer; });
  def(cDevice, "currentAllocatedSize", [](id, SEL) -> ulong { return allocated; });
  def(cDevice, "supports32BitFloatFiltering", [](id, SEL) { return true; });
  initBuffers();
  initEvents();
  device = make<Device>(cDevice);
}
void initMetal() {
  initDevice();
  initLibrary();
  initCommands();
  initEncoders();
  initResidency();
  initCapture();
}
}  // namespace sm
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT void* MTLCreateSystemDefaultDevice() { objc_lookUpClass("NSObject"); return retain(device); }
EXPORT void* MTLCopyAllDevices() {
  objc_lookUpClass("NSObject");
  Array* a = newArray();
  a->items.push_back(retain(device));
  return a;
}
EXPORT void* MTLCopyAllDevicesWithObserver(void** observer, void*) { if (observer) *observer = nullptr; return MTLCopyAllDevices(); }
EXPORT void MTLRemoveDeviceObserver(void*) {}
