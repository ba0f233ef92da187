// Classes, message look-up, reference counts, autorelease pools, Blocks.
#include "objc.hpp"
#include "softmetal.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
using namespace sm;
#define EXPORT extern "C" __attribute__((visibility("default")))
namespace {
// Class look-ups run in the static initialisers of other libraries, so nothing here may depend on their order.
struct Tables { std::mutex m; std::set<std::string> selectors; std::unordered_map<std::string, Class> classes; };
Tables& tables() { static Tables* t = new Tables; return *t; }
std::once_flag once;
void ensure() { std::call_once(once, [] { initFoundation(); initMetal(); }); }
thread_local std::vector<std::vector<id>> pools;
Class zombie;
Class cPool;
struct Pool : Obj {};
long nothing() { return 0; }
}  // namespace
EXPORT SEL sel_registerName(const char* n) {
  std::lock_guard<std::mutex> l(tables().m);
  return (SEL)tables().selectors.insert(n).first->c_str();
}
EXPORT const char* sel_getName(SEL s) { return (const char*)s; }
EXPORT void* objc_lookUpClass(const char* n) {
  ensure();
  std::lock_guard<std::mutex> l(tables().m);
  auto i = tables().classes.find(n);
  return i == tables().classes.end() ? nullptr : (void*)i->second;
}
EXPORT void* objc_getProtocol(const char*) { return nullptr; }
EXPORT IMP sm_objc_lookup(id self, SEL sel) {
  if (self->isa == zombie) {
    fail("message '%s' sent to a deallocated object", (const char*)sel);
    return (IMP)nothing;
  }
  for (Class c = self->isa; c; c = c->super) {
    auto i = c->methods->find(sel);
    if (i == c->methods->end()) continue;
    if (i->second.since <= options.os) return i->second.imp;
    fail("%c[%s %s]: unrecognized selector on macOS %d (it came with %d)", self->isa->isMeta ? '+' : '-', self->isa->name,
         (const char*)sel, options.os, i->second.since);
    return (IMP)nothing;
  }
  fail("%c[%s %s]: unrecognized selector", self->isa->isMeta ? '+' : '-', self->isa->name, (const char*)sel);
  return (IMP)nothing;
}
EXPORT int64_t softmetal_live_objects(const char* name) {
  Class c = (Class)objc_lookUpClass(name);
  return c ? c->live.load() : -1;
}

namespace sm {
Class cNSObject;
Class defClass(const char* name, Class super) {
  auto create = [&](bool meta) {
    Class c = new objc_class();
    c->name = name;
    c->isMeta = meta;
    c->methods = new std::unordered_map<SEL, Method>;
    return c;
  };
  Class c = create(false), m = create(true);
  c->isa = m;
  m->isa = m;
  c->super = super;
  m->super = super ? super->isa : nullptr;
  c->destroy = super ? super->destroy : nullptr;
  std::lock_guard<std::mutex> l(tables().m);
  return tables().classes[name] = c;
}
id retain(id o) {
  if (o) ((Obj*)o)->rc++;
  return o;
}
void release(id o) {
  if (!o) return;
  Obj* x = (Obj*)o;
  if (x->isa == zombie) return fail("release of a deallocated object");
  if (--x->rc > 0) return;
  Class c = x->isa;
  c->live--;
  if (c->destroy) c->destroy(o);
  x->isa = zombie;
}
id autorelease(id o) {
  if (!o) return o;
  if (pools.empty()) {
    if (options.poolStrict) fail("object of class %s autoreleased with no pool in place", o->isa->name);
    return o;                                   // leaked, as on macOS
  }
  pools.back().push_back(o);
  return o;
}
void initObjects() {
  cNSObject = defClass("NSObject", nullptr);
  zombie = defClass("_Zombie", nullptr);
  def(cNSObject, "retain", [](id s, SEL) { return retain(s); });
  def(cNSObject, "release", [](id s, SEL) { release(s); });
  def(cNSObject, "autorelease", [](id s, SEL) { return autorelease(s); });
  def(cNSObject, "retainCount", [](id s, SEL) -> unsigned long { return ((Obj*)s)->rc.load(); });
  def(cNSObject, "init", [](id s, SEL) { return s; });
  def(cNSObject, "hash", [](id s, SEL) { return (unsigned long)s; });
  def(cNSObject, "isEqual:", [](id s, SEL, id o) { return s == o; });
  def(cNSObject, "respondsToSelector:", [](id s, SEL, SEL q) -> bool {
    for (Class c = s->isa; c; c = c->super) {
      auto i = c->methods->find(q);
      if (i != c->methods->end()) return i->second.since <= options.os;
    }
    return false;
  });
  def(cNSObject, "methodSignatureForSelector:", [](id, SEL, SEL) -> id { return nullptr; });
  def(cNSObject, "description", [](id s, SEL) { return (id)autorel(str(s->isa->name)); });
  cPool = defClass("NSAutoreleasePool", cNSObject);
  defClassMethod(cPool, "alloc", [](id, SEL) { return (id)make<Pool>(cPool); });
  def(cPool, "init", [](id s, SEL) { pools.emplace_back(); return s; });
  auto drain = [](id s, SEL) {
    if (pools.empty()) return fail("a pool is released on a thread that has none open");
    auto v = std::move(pools.back());
    pools.pop_back();
    for (id o : v) release(o);
    release(s);
  };
  def(cPool, "drain", drain);
  def(cPool, "release", drain);
}

// ---- Blocks, as the compiler lays them out
struct BlockDescriptor { unsigned long reserved, size; void (*copy)(void*, const void*); void (*dispose)(const void*); };
struct BlockLayout { void* isa; int flags, refs; void (*invoke)(void*, ...); BlockDescriptor* descriptor; };
constexpr int HAS_HELPERS = 1 << 25, IS_GLOBAL = 1 << 28;
void* blockCopy(const void* p) {
  auto* b = (BlockLayout*)p;
  if (!b || b->flags & IS_GLOBAL) return b;
  auto* c = (BlockLayout*)malloc(b->descriptor->size);
  memcpy(c, b, b->descriptor->size);
  if (b->flags & HAS_HELPERS) b->descriptor->copy(c, b);
  return c;
}
void blockRelease(const void* p) {
  auto* b = (BlockLayout*)p;
  if (!b || b->flags & IS_GLOBAL) return;
  if (b->flags & HAS_HELPERS) b->descriptor->dispose(b);
  free(b);
}
}  // namespace sm
EXPORT void* _Block_copy(const void* b) { return blockCopy(b); }
EXPORT void _Block_release(const void* b) { blockRelease(b); }
// A variable captured with __block sits in a structure that starts so; metal-cpp captures a std::function this way. It moves
// to the heap with the first copy. The low 16 bits of flags count its holders in twos, as the compiler's own runtime does.
struct ByRef { void* isa; ByRef* forwarding; int flags; int size; void (*copy)(void*, void*); void (*dispose)(void*); };
EXPORT void _Block_object_assign(void* to, const void* from, int kind) {
  if ((kind & 31) != 8) { *(const void**)to = (kind & 31) == 7 ? blockCopy(from) : from; return; }
  ByRef* r = (ByRef*)from;
  if (r->forwarding == r && (r->flags & 0xffff) == 0) {
    auto* h = (ByRef*)malloc(r->size);
    memcpy(h, r, r->size);
    h->forwarding = r->forwarding = h;
    h->flags |= 4;                                          // the copied block and the stack frame
    if (r->flags & HAS_HELPERS) r->copy(h, r);
  } else r->forwarding->flags += 2;
  *(void**)to = r->forwarding;
}
EXPORT void _Block_object_dispose(const void* object, int kind) {
  if ((kind & 31) == 7) return blockRelease(object);
  if ((kind & 31) != 8) return;
  ByRef* r = ((ByRef*)object)->forwarding;
  if ((r->flags & 0xffff) == 0) return;                     // never left the stack
  r->flags -= 2;
  if (r->flags & 0xffff) return;
  if (r->flags & HAS_HELPERS) r->dispose(r);
  free(r);
}
extern "C" {
__attribute__((visibility("default"))) void *_NSConcreteStackBlock[32], *_NSConcreteGlobalBlock[32];
}
