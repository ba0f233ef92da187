// The Metal objects.
#pragma once
#include "exec.hpp"
#include "objc.hpp"
#include <map>
#include <memory>
#include <set>
#include <functional>
namespace sm {
struct Size { ulong width, height, depth; };           // MTLSize, by value
struct Range { ulong location, length; };              // NSRange, by value

struct Device : Obj {};
struct Buffer : Obj {
  char* p = nullptr;
  ulong length = 0, options = 0;
  char* map = nullptr;               // of an own buffer: [guard][data][guard]
  size_t mapLength = 0;
  void* deallocator = nullptr;       // of a no-copy buffer: a Block
  std::string label;
  ulong storage() const { return options >> 4 & 15; }
  bool slackIntact() const;
  ~Buffer();
};
enum Storage { storageShared = 0, storageManaged = 1, storagePrivate = 2 };

// A compiled library: the kernels of one shared object.
struct Code { const Kernel* kernels; const Constant* constants; bool instrumented; std::string key; };
typedef std::map<int, std::string> ConstantValues;
struct Library : Obj { Code* code; };
struct Function : Obj { Code* code; int index; ConstantValues values; std::string name() const { return code->kernels[index].name; } };
struct Pipeline : Obj { Code* code; int index; ConstantValues values; ulong maxThreads; bool wholeSimdgroups = false; };
struct FunctionConstantValues : Obj { ConstantValues values; };
struct CompileOptions : Obj { int math = 2; ulong version = 0; };      // 0 safe, 1 relaxed, 2 fast (Metal's default)
struct PipelineDescriptor : Obj {
  Function* function = nullptr;
  std::vector<id> archives;
  ulong maxThreads = 0;
  bool wholeSimdgroups = false;
  ~PipelineDescriptor() { release((id)function); for (id a : archives) release(a); }
};
struct ArchiveDescriptor : Obj { std::string path; };
struct Archive : Obj { std::set<std::string> entries; };

struct Event : Obj { ulong value = 0; };
struct ResidencySet : Obj {
  std::set<id> staged, resident;
  bool dirty = false;
  ~ResidencySet() { for (id a : staged) release(a); }
};

struct CommandBuffer;
struct Queue : Obj { std::set<id> residency; };
// One piece of work: a dispatch, or anything else as a function. Returns "" or an error.
struct Work {
  std::unique_ptr<Dispatch> dispatch;
  Code* code = nullptr;
  ConstantValues values;
  std::vector<std::shared_ptr<std::string>> bytes;     // of setBytes
  const char* indirect = nullptr;                      // where the number of threadgroups stands
  uint encoder = 0, generation = 0;
  bool concurrent = false;
  std::function<std::string()> action;
};
enum Status { notEnqueued, enqueued, committed, scheduled, completed, failed };
struct CommandBuffer : Obj {
  Queue* queue = nullptr;
  std::vector<Work> work;
  std::vector<id> held;
  std::vector<void*> completedHandlers, scheduledHandlers;
  std::atomic<int> status{notEnqueued};
  int polls = 0;                     // status reads since the commit
  Err* error = nullptr;
  double start = 0, end = 0;
  id open = nullptr;                 // the encoder that is encoding
  bool retainsReferences = true;
  void hold(id o) { held.push_back(retain(o)); }
  ~CommandBuffer();
};
struct Encoder : Obj {
  CommandBuffer* buffer = nullptr;
  bool ended = false;
  ~Encoder();
};
struct BoundBuffer { Buffer* buffer = nullptr; ulong offset = 0; std::shared_ptr<std::string> bytes; };
struct ComputeEncoder : Encoder {
  Pipeline* pipeline = nullptr;
  BoundBuffer slots[MAX_BINDINGS];
  ulong threadgroupBytes[MAX_BINDINGS] = {};
  bool concurrent = false;
  uint number = 0, generation = 0, count = 0;
  uint scopeBarrier = 0;                               // dispatches with a smaller number are behind a barrier
  std::map<Buffer*, uint> resourceBarrier;
};
struct BlitEncoder : Encoder { uint number = 0; };

extern Class cBuffer, cDevice, cQueue, cEvent, cSharedEvent, cCommandBuffer, cPipeline;
// True, or a report that `o` is not an object of class c or of one below it.
bool isKind(id o, Class c, const char* what);
// Runs committed work up to `until` (inclusive).
void drain(CommandBuffer* until);
bool drainUntil(Event* event, ulong value);
void initDevice();
void initLibrary();
void initCommands();
void initEncoders();
}
