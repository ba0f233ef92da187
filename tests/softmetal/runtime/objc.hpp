// A small Objective-C runtime: single inheritance, no forwarding, no key-value coding.
#pragma once
#include "options.hpp"
#include <objc/runtime.h>
#include <atomic>
#include <string>
#include <unordered_map>
#include <vector>

namespace sm { struct Method { IMP imp; int since; }; }
struct objc_class : objc_object {            // a class is an object: its isa is the metaclass
  const char* name;
  Class super;
  bool isMeta;
  std::unordered_map<SEL, sm::Method>* methods;
  void (*destroy)(id);                       // at reference count 0
  std::atomic<long> live;
};
namespace sm {
// isa stands at offset 0, so objects have no C++ virtuals; destruction goes through Class::destroy.
struct Obj : objc_object { std::atomic<long> rc; };
Class defClass(const char* name, Class super);
// A method; `since` is the macOS version that brought it: earlier ones do not recognise the selector.
template <class F> void def(Class c, const char* sel, F f, int since = 0) {
  (*c->methods)[sel_registerName(sel)] = {reinterpret_cast<IMP>(+f), since};
}
template <class F> void defClassMethod(Class c, const char* sel, F f, int since = 0) { def(c->isa, sel, f, since); }
template <class T> T* make(Class c) { T* o = new T(); o->isa = c; o->rc = 1; c->live++; return o; }
// The usual class: its objects are T. At the end their C++ members are destroyed; the memory stays as a zombie, so that late
// messages are caught.
template <class T> Class defType(const char* name, Class super) {
  Class c = defClass(name, super);
  c->destroy = [](id o) { ((T*)o)->~T(); };
  return c;
}
id retain(id);
void release(id);
id autorelease(id);
template <class T> T* autorel(T* o) { return (T*)autorelease((id)o); }
struct Str : Obj { std::string s; };
struct Err : Obj { std::string domain, text; long code; };
struct Array : Obj { std::vector<id> items; };
struct Url : Obj { std::string path; };
Str* str(const std::string&);
const char* utf8(id);
Array* newArray();
Err* err(const char* domain, long code, const std::string& text);
void setError(id* out, Err* e);
extern Class cNSObject;
void initFoundation();
void initMetal();
void* blockCopy(const void*);
void blockRelease(const void*);
}
