// The Foundation classes that metal-cpp host code touches.
#include "objc.hpp"
#include <cstring>
using namespace sm;
namespace {
Class cString, cError, cArray, cUrl, cProcess, cConstant;
struct ConstantString { Class isa; int flags, pad; const char* p; long n; };     // as the compiler emits MTLSTR("…")
struct Version { long major, minor, patch; };
}
extern "C" { __attribute__((visibility("default"))) objc_class __CFConstantStringClassReference; }
namespace sm {
void initObjects();
Str* str(const std::string& s) { Str* o = make<Str>(cString); o->s = s; return o; }
const char* utf8(id o) {
  if (!o) return nullptr;
  return o->isa == cConstant ? ((ConstantString*)o)->p : ((Str*)o)->s.c_str();
}
Err* err(const char* domain, long code, const std::string& text) {
  Err* e = make<Err>(cError);
  e->domain = domain;
  e->code = code;
  e->text = text;
  return e;
}
void setError(id* out, Err* e) {
  if (out) *out = (id)autorel(e);
  else release((id)e);
}

Array* newArray() { return make<Array>(cArray); }

static void initStrings() {
  cString = defType<Str>("NSString", cNSObject);
  def(cString, "UTF8String", [](id s, SEL) { return utf8(s); });
  def(cString, "fileSystemRepresentation", [](id s, SEL) { return utf8(s); });
  def(cString, "length", [](id s, SEL) -> unsigned long { return strlen(utf8(s)); });
  def(cString, "cStringUsingEncoding:", [](id s, SEL, unsigned long) { return utf8(s); });
  def(cString, "isEqualToString:", [](id s, SEL, id o) -> bool { return o && !strcmp(utf8(s), utf8(o)); });
  def(cString, "stringByAppendingString:", [](id s, SEL, id o) { return (id)autorel(str(std::string(utf8(s)) + utf8(o))); });
  def(cString, "initWithCString:encoding:", [](id s, SEL, const char* p, unsigned long) { ((Str*)s)->s = p; return s; });
  def(cString, "initWithString:", [](id s, SEL, id o) { ((Str*)s)->s = utf8(o); return s; });
  def(cString, "description", [](id s, SEL) { return s; });
  defClassMethod(cString, "alloc", [](id, SEL) { return (id)str(""); });
  defClassMethod(cString, "string", [](id, SEL) { return (id)autorel(str("")); });
  defClassMethod(cString, "stringWithString:", [](id, SEL, id o) { return (id)autorel(str(utf8(o))); });
  defClassMethod(cString, "stringWithCString:encoding:", [](id, SEL, const char* p, unsigned long) { return (id)autorel(str(p)); });
  // Constant strings carry the address of this very symbol as their class.
  Class plain = defClass("__NSCFConstantString", cString);
  cConstant = &__CFConstantStringClassReference;
  cConstant->isa = plain->isa;
  cConstant->name = "__NSCFConstantString";
  cConstant->super = cString;
  cConstant->methods = new std::unordered_map<SEL, Method>;
  def(cConstant, "retain", [](id s, SEL) { return s; });
  def(cConstant, "release", [](id, SEL) {});
  def(cConstant, "autorelease", [](id s, SEL) { return s; });
  def(cConstant, "retainCount", [](id, SEL) -> unsigned long { return ~0ul; });
}

static void initCollections() {
  struct A : Array { ~A() { for (id o : items) release(o); } };
  cArray = defType<A>("NSArray", cNSObject);
  auto fill = [](Array* a, id const* p, unsigned long n) { for (unsigned long i = 0; i < n; i++) a->items.push_back(retain(p[i])); return (id)a; };
  static auto filled = fill;
  defClassMethod(cArray, "alloc", [](id, SEL) { return (id)make<Array>(cArray); });
  defClassMethod(cArray, "array", [](id, SEL) { return (id)autorel(make<Array>(cArray)); });
  defClassMethod(cArray, "arrayWithObject:", [](id, SEL, id o) { return (id)autorel(filled(make<Array>(cArray), &o, 1)); });
  defClassMethod(cArray, "arrayWithObjects:count:", [](id, SEL, id const* p, unsigned long n) { return (id)autorel(filled(make<Array>(cArray), p, n)); });
  def(cArray, "initWithObjects:count:", [](id s, SEL, id const* p, unsigned long n) { return filled((Array*)s, p, n); });
  def(cArray, "count", [](id s, SEL) -> unsigned long { return ((Array*)s)->items.size(); });
  def(cArray, "objectAtIndex:", [](id s, SEL, unsigned long i) -> id {
    Array* a = (Array*)s;
    if (i < a->items.size()) return a->items[i];
    fail("objectAtIndex: %lu is beyond the %zu objects of the array", i, a->items.size());
    return nullptr;
  });
  cUrl = defType<Url>("NSURL", cNSObject);
  defClassMethod(cUrl, "alloc", [](id, SEL) { return (id)make<Url>(cUrl); });
  defClassMethod(cUrl, "fileURLWithPath:", [](id, SEL, id p) { Url* u = make<Url>(cUrl); u->path = utf8(p); return (id)autorel(u); });
  def(cUrl, "initFileURLWithPath:", [](id s, SEL, id p) { ((Url*)s)->path = utf8(p); return s; });
  def(cUrl, "fileSystemRepresentation", [](id s, SEL) { return ((Url*)s)->path.c_str(); });
}

void initFoundation() {
  initObjects();
  initStrings();
  initCollections();
  cError = defType<Err>("NSError", cNSObject);
  def(cError, "localizedDescription", [](id s, SEL) { return (id)autorel(str(((Err*)s)->text)); });
  def(cError, "description", [](id s, SEL) { return (id)autorel(str(((Err*)s)->text)); });
  def(cError, "domain", [](id s, SEL) { return (id)autorel(str(((Err*)s)->domain)); });
  def(cError, "code", [](id s, SEL) { return ((Err*)s)->code; });
  cProcess = defType<Obj>("NSProcessInfo", cNSObject);
  defClassMethod(cProcess, "processInfo", [](id, SEL) { static Obj* p = make<Obj>(cProcess); return (id)p; });
  def(cProcess, "operatingSystemVersion", [](id, SEL) { return Version{options.os, options.os == 14 ? 2 : 0, 0}; });
  def(cProcess, "operatingSystemVersionString", [](id, SEL) { return (id)autorel(str("Version " + std::to_string(options.os) + ".0 (simulated)")); });
  def(cProcess, "isOperatingSystemAtLeastVersion:", [](id, SEL, Version v) -> bool {
    return options.os > v.major || (options.os == v.major && v.minor <= (options.os == 14 ? 2 : 0) && v.patch <= 0);
  });
  def(cProcess, "physicalMemory", [](id, SEL) -> unsigned long long { return 16ull << 30; });
  def(cProcess, "activeProcessorCount", [](id, SEL) -> unsigned long { return 8; });
}
}  // namespace sm
