// Libraries from source, functions, pipelines, binary archives. The generator (TypeScript, run by Deno) turns the source into
// a shared object, which is cached on disk by a hash of everything that goes into it.
#include "metal.hpp"
#include "toolchain.h"               // written by build.ts: SM_DENO, SM_GENERATOR, SM_TOOLCHAIN, SM_MARCH
#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <mutex>
#include <spawn.h>
#include <sstream>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
using namespace sm;
namespace sm { Class cPipeline; }
extern char** environ;
namespace {
Class cLibrary, cFunction, cOptions, cValues, cPipelineDescriptor, cArchiveDescriptor, cArchive;
std::mutex loadLock;
std::map<std::string, Code*> loaded;
std::map<std::string, std::shared_ptr<std::mutex>> compiling;

std::string hash(const std::string& s) {               // FNV-1a in 128 bits: two runs with different offsets
  unsigned __int128 h = ((unsigned __int128)0x6c62272e07bb0142 << 64) | 0x62b821756295c58d, prime = ((unsigned __int128)1 << 88) | 0x13b;
  for (unsigned char c : s) h = (h ^ c) * prime;
  return format("%016lx%016lx", (ulong)(h >> 64), (ulong)h);
}
std::string self() {
  Dl_info i;
  dladdr((void*)&self, &i);
  char full[4096];
  return realpath(i.dli_fname, full) ? full : i.dli_fname;
}
std::string cacheFolder() {
  std::string f = options.cache;
  if (f.empty()) { std::string s = self(); f = s.substr(0, s.rfind('/', s.rfind('/') - 1)) + "/kernels"; }
  mkdir(f.c_str(), 0755);
  return f;
}
// Runs a program; its standard output and error come back in *output.
bool run(const std::vector<std::string>& args, std::string* output) {
  int fd[2];
  if (pipe2(fd, O_CLOEXEC)) { *output = "pipe failed"; return false; }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fd[1], 1);
  posix_spawn_file_actions_adddup2(&actions, fd[1], 2);
  std::vector<char*> argv;
  for (auto& a : args) argv.push_back((char*)a.c_str());
  argv.push_back(nullptr);
  pid_t pid;
  int rc = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(fd[1]);
  if (rc) { close(fd[0]); *output = "cannot run " + args[0] + ": " + strerror(rc); return false; }
  char b[4096];
  for (ssize_t n; (n = read(fd[0], b, sizeof b)) != 0;) { if (n > 0) output->append(b, n); else if (errno != EINTR) break; }
  close(fd[0]);
  int status;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
std::string compile(const std::string& source, const CompileOptions* o, Code** out) {
  static const ulong newest[] = {0x30000, 0x30001, 0x30002};   // what macOS 13, 14 and 15 brought
  ulong limit = newest[std::clamp(options.os - 13, 0, 2)], version = o && o->version ? o->version : limit;
  if (version > limit) return format("language version %lu.%lu needs a newer macOS than the simulated %d", version >> 16, version & 0xffff, options.os);
  const char* math[] = {"safe", "relaxed", "fast"};
  std::string mode = options.detect ? "detect" : "fast", v = std::to_string((version >> 16) * 100 + (version & 0xffff) * 10);
  std::string m = math[o ? o->math : 2];
  std::string key = hash(source + "\1" SM_TOOLCHAIN "\1" SM_MARCH "\1" + mode + m + v);
  // Libraries of different sources compile in parallel; the second request for one waits for the first.
  std::shared_ptr<std::mutex> mine;
  {
    std::lock_guard<std::mutex> l(loadLock);
    auto& m = compiling[key];
    if (!m) m = std::make_shared<std::mutex>();
    mine = m;
  }
  std::lock_guard<std::mutex> one(*mine);
  {
    std::lock_guard<std::mutex> l(loadLock);
    auto known = loaded.find(key);
    if (known != loaded.end()) { *out = known->second; return ""; }
  }
  std::string base = cacheFolder() + "/softmetal-" + key, so = base + ".so";
  if (access(so.c_str(), R_OK) != 0) {
    std::string metal = base + ".metal", temporary = base + "." + std::to_string(getpid()) + ".so", output;
    std::ofstream(metal) << source;
    counters.kernelCompiles++;
    const char* deno = getenv("SOFTMETAL_DENO");
    bool ok = run({deno ? deno : SM_DENO, "run", "-A", "--no-lock", "--no-config", "--quiet", SM_GENERATOR, "compile", metal, temporary, mode, m, v, SM_MARCH, self()}, &output);
    if (!ok) return output.empty() ? "the kernel generator failed" : output;
    if (rename(temporary.c_str(), so.c_str())) return "cannot write " + so;
  }
  void* h = dlopen(so.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!h) return dlerror();
  std::lock_guard<std::mutex> l(loadLock);
  *out = loaded[key] = new Code{(const Kernel*)dlsym(h, "sm_kernels"), (const Constant*)dlsym(h, "sm_constants"), options.detect, key};
  return "";
}
id newLibrary(id source, id o, id* e) {
  if (!source) { fail("newLibraryWithSource: nil"); return nullptr; }
  Code* code = nullptr;
  std::string m = compile(utf8(source), (CompileOptions*)o, &code);
  if (!m.empty()) { setError(e, err("MTLLibraryErrorDomain", 3, m)); return nullptr; }
  Library* l = make<Library>(cLibrary);
  l->code = code;
  counters.libraries++;
  return l;
}
id newFunction(id library, id name, const ConstantValues& values, id* e) {
  Library* l = (Library*)library;
  for (int i = 0; name && l->code->kernels[i].name; i++) {
    if (strcmp(l->code->kernels[i].name, utf8(name))) continue;
    Function* f = make<Function>(cFunction);
    f->code = l->code;
    f->index = i;
    f->values = values;
    return f;
  }
  setError(e, err("MTLLibraryErrorDomain", 5, std::string("no function named '") + (name ? utf8(name) : "") + "'"));
  return nullptr;
}
// What an archive stores of a function: everything that its machine code depends on.
std::string archiveEntry(const Function* f) {
  std::string s = f->code->key + " " + f->name() + format(" os%d", options.os);
  for (auto& [i, v] : f->values) { s += format(" %d=", i); for (unsigned char c : v) s += format("%02x", c); }
  return s;
}
constexpr const char* ARCHIVE_MAGIC = "softmetal binary archive 1";

enum { failOnArchiveMiss = 4 };
Pipeline* newPipeline(id function, id* e) {
  if (!isKind(function, cFunction, "newComputePipelineState:")) return nullptr;
  Function* f = (Function*)function;
  const Kernel& k = f->code->kernels[f->index];
  for (int i = 0; i < 32; i++) {
    if (!(k.constantMask >> i & 1) || f->values.count(i)) continue;
    setError(e, err("CompilerError", 2, format("function '%s' uses function constant %d, which has no value", k.name, i)));
    return nullptr;
  }
  Pipeline* p = make<Pipeline>(cPipeline);
  p->code = f->code;
  p->index = f->index;
  p->values = f->values;
  p->maxThreads = std::min<ulong>(options.maxThreads, k.maxThreads ? k.maxThreads : MAX_THREADS);
  counters.pipelines++;
  return p;
}
id newPipelineWithDescriptor(id descriptor, ulong option, id* e) {
  if (!isKind(descriptor, cPipelineDescriptor, "newComputePipelineStateWithDescriptor:")) return nullptr;
  auto* d = (PipelineDescriptor*)descriptor;
  if (!d->function) { fail("newComputePipelineStateWithDescriptor: computeFunction is nil"); return nullptr; }
  if (!d->archives.empty()) {
    bool hit = false;
    for (id a : d->archives) hit |= ((Archive*)a)->entries.count(archiveEntry(d->function)) > 0;
    (hit ? counters.archiveHits : counters.archiveMisses)++;
    if (!hit && option & failOnArchiveMiss) {
      setError(e, err("MTLBinaryArchiveDomain", 1, "function '" + d->function->name() + "' is in none of the binary archives"));
      return nullptr;
    }
  }
  Pipeline* p = newPipeline(d->function, e);
  if (p && d->maxThreads) p->maxThreads = std::min(p->maxThreads, d->maxThreads);
  if (p) p->wholeSimdgroups = d->wholeSimdgroups;
  return p;
}
id newArchive(id descriptor, id* e) {
  if (!isKind(descriptor, cArchiveDescriptor, "newBinaryArchiveWithDescriptor:")) return nullptr;
  Archive* a = make<Archive>(cArchive);
  const std::string& path = ((ArchiveDescriptor*)descriptor)->path;
  if (path.empty()) return a;
  std::ifstream f(path);
  std::string line;
  if (!std::getline(f, line) || line != ARCHIVE_MAGIC) {
    setError(e, err("MTLBinaryArchiveDomain", 1, path + " is missing or is no binary archive"));
    release((id)a);
    return nullptr;
  }
  while (std::getline(f, line)) a->entries.insert(line);
  return a;
}
void initPipelines() {
  cPipeline = defType<Pipeline>("MTLComputePipelineState", cNSObject);
  def(cPipeline, "maxTotalThreadsPerThreadgroup", [](id s, SEL) { return ((Pipeline*)s)->maxThreads; });
  def(cPipeline, "threadExecutionWidth", [](id, SEL) -> ulong { return SIMD; });
  // A kernel's own variables are known when it runs: sm_tg_register checks their sum with the dynamic ones.
  def(cPipeline, "staticThreadgroupMemoryLength", [](id, SEL) -> ulong { return 0; });
  def(cPipeline, "label", [](id s, SEL) { auto* p = (Pipeline*)s; return (id)autorel(str(p->code->kernels[p->index].name)); });
  cPipelineDescriptor = defType<PipelineDescriptor>("MTLComputePipelineDescriptor", cNSObject);
  Class c = cPipelineDescriptor;
  defClassMethod(c, "alloc", [](id, SEL) { return (id)make<PipelineDescriptor>(cPipelineDescriptor); });
  def(c, "setComputeFunction:", [](id s, SEL, id f) { if (isKind(f, cFunction, "setComputeFunction:")) { release((id)((PipelineDescriptor*)s)->function); ((PipelineDescriptor*)s)->function = (Function*)retain(f); } });
  def(c, "setLabel:", [](id, SEL, id) {});
  def(c, "setMaxTotalThreadsPerThreadgroup:", [](id s, SEL, ulong n) { ((PipelineDescriptor*)s)->maxThreads = n; });
  def(c, "setThreadGroupSizeIsMultipleOfThreadExecutionWidth:", [](id s, SEL, bool b) { ((PipelineDescriptor*)s)->wholeSimdgroups = b; });
  def(c, "setBinaryArchives:", [](id s, SEL, id a) {
    auto* d = (PipelineDescriptor*)s;
    for (id o : d->archives) release(o);
    d->archives.clear();
    for (id o : ((Array*)a)->items) if (isKind(o, cArchive, "setBinaryArchives:")) d->archives.push_back(retain(o));
  });
  def(cDevice, "newComputePipelineStateWithFunction:error:", [](id, SEL, id f, id* e) -> id { return newPipeline(f, e); });
  def(cDevice, "newComputePipelineStateWithDescriptor:options:reflection:error:", [](id, SEL, id d, ulong o, id* r, id* e) -> id { if (r) *r = nullptr; return newPipelineWithDescriptor(d, o, e); });
  cArchiveDescriptor = defType<ArchiveDescriptor>("MTLBinaryArchiveDescriptor", cNSObject);
  defClassMethod(cArchiveDescriptor, "alloc", [](id, SEL) { return (id)make<ArchiveDescriptor>(cArchiveDescriptor); });
  def(cArchiveDescriptor, "setUrl:", [](id s, SEL, id u) { ((ArchiveDescriptor*)s)->path = u ? ((Url*)u)->path : ""; });
  cArchive = defType<Archive>("MTLBinaryArchive", cNSObject);
  def(cArchive, "setLabel:", [](id, SEL, id) {});
  def(cArchive, "addComputePipelineFunctionsWithDescriptor:error:", [](id s, SEL, id d, id*) -> bool {
    if (!isKind(d, cPipelineDescriptor, "addComputePipelineFunctions:") || !((PipelineDescriptor*)d)->function) return false;
    ((Archive*)s)->entries.insert(archiveEntry(((PipelineDescriptor*)d)->function));
    return true;
  });
  def(cArchive, "serializeToURL:error:", [](id s, SEL, id u, id* e) -> bool {
    if (!u) { fail("serializeToURL: nil"); return false; }
    std::ofstream f(((Url*)u)->path);
    f << ARCHIVE_MAGIC << "\n";
    for (auto& line : ((Archive*)s)->entries) f << line << "\n";
    f.close();
    if (f) return true;
    setError(e, err("MTLBinaryArchiveDomain", 2, "cannot write " + ((Url*)u)->path));
    return false;
  });
  def(cDevice, "newBinaryArchiveWithDescriptor:error:", [](id, SEL, id d, id* e) -> id { return newArchive(d, e); });
}
}  // namespace
void sm::initLibrary() {
  cLibrary = defType<Library>("MTLLibrary", cNSObject);
  cFunction = defType<Function>("MTLFunction", cNSObject);
  cOptions = defType<CompileOptions>("MTLCompileOptions", cNSObject);
  cValues = defType<FunctionConstantValues>("MTLFunctionConstantValues", cNSObject);
  defClassMethod(cOptions, "alloc", [](id, SEL) { return (id)make<CompileOptions>(cOptions); });
  def(cOptions, "setFastMathEnabled:", [](id s, SEL, bool b) { ((CompileOptions*)s)->math = b ? 2 : 0; });
  def(cOptions, "setMathMode:", [](id s, SEL, long m) { if (m < 0 || m > 2) fail("setMathMode: %ld", m); else ((CompileOptions*)s)->math = (int)m; }, 15);
  def(cOptions, "setMathFloatingPointFunctions:", [](id, SEL, long) {}, 15);
  def(cOptions, "setLanguageVersion:", [](id s, SEL, ulong v) { ((CompileOptions*)s)->version = v; });
  def(cOptions, "setOptimizationLevel:", [](id, SEL, long) {});
  def(cDevice, "newLibraryWithSource:options:error:", [](id, SEL, id src, id o, id* e) -> id { return newLibrary(src, o, e); });
  def(cDevice, "newLibraryWithURL:error:", [](id, SEL, id, id* e) -> id { setError(e, err("MTLLibraryErrorDomain", 1, "software Metal cannot load a compiled library")); return nullptr; });
  def(cDevice, "newLibraryWithData:error:", [](id, SEL, id, id* e) -> id { setError(e, err("MTLLibraryErrorDomain", 1, "software Metal cannot load a compiled library")); return nullptr; });
  def(cDevice, "newDefaultLibrary", [](id, SEL) -> id { return nullptr; });
  def(cLibrary, "setLabel:", [](id, SEL, id) {});
  def(cLibrary, "functionNames", [](id s, SEL) {
    Array* a = newArray();
    for (const Kernel* k = ((Library*)s)->code->kernels; k->name; k++) a->items.push_back(str(k->name));
    return (id)autorel(a);
  });
  def(cLibrary, "newFunctionWithName:", [](id s, SEL, id n) -> id { return newFunction(s, n, {}, nullptr); });
  def(cLibrary, "newFunctionWithName:constantValues:error:", [](id s, SEL, id n, id v, id* e) -> id {
    if (!isKind(v, cValues, "newFunctionWithName:constantValues:")) return nullptr;
    return newFunction(s, n, ((FunctionConstantValues*)v)->values, e);
  });
  def(cFunction, "name", [](id s, SEL) { return (id)autorel(str(((Function*)s)->name())); });
  def(cFunction, "setLabel:", [](id, SEL, id) {});
  defClassMethod(cValues, "alloc", [](id, SEL) { return (id)make<FunctionConstantValues>(cValues); });
  def(cValues, "setConstantValue:type:atIndex:", [](id s, SEL, const void* p, ulong type, ulong i) {
    // MTLDataType: float 3, half 16, int 29, uint 33, short 37, ushort 41, char 45, uchar 49, bool 53
    ulong size = type == 53 || type == 45 || type == 49 ? 1 : type == 16 || type == 37 || type == 41 ? 2 : type == 3 || type == 29 || type == 33 ? 4 : 0;
    if (!size) return fail("setConstantValue: type %lu is not a scalar that software Metal knows", type);
    ((FunctionConstantValues*)s)->values[(int)i] = std::string((const char*)p, size);
  });
  initPipelines();
}
