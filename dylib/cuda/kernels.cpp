#include "kernels.h"

#include <chrono>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "../options.h"
#include "../gpu/parallel.h"

namespace mb::cuda {

namespace {

constexpr unsigned kMaxThreads = 16;
constexpr size_t kLogBytes = 4096;

// The first line of a PTX text, as dylib/ptx/modules.ts writes it:
//   // kernel <entry> threads <most> arguments b0:8 b1:8 p7:208 t0:4
// Returns the name of the entry.
std::string read_head(const std::string &text, Kernel &kernel, const std::string &path) {
  std::istringstream line(text.substr(0, text.find('\n')));
  std::string slashes, word, entry, threads, arguments;
  line >> slashes >> word >> entry >> threads >> kernel.max_threads >> arguments;
  bool good = slashes == "//" && word == "kernel" && threads == "threads" && arguments == "arguments";
  for (std::string one; line >> one && good;) {
    Kernel::Argument argument{};
    char kind = 0;
    good = sscanf(one.c_str(), "%c%u:%u", &kind, &argument.slot, &argument.bytes) == 3 && strchr("bpt", kind) != nullptr;
    argument.kind = kind == 'b'   ? Kernel::Argument::kBuffer
                    : kind == 'p' ? Kernel::Argument::kBytes
                                  : Kernel::Argument::kThreadgroup;
    kernel.arguments.push_back(argument);
  }
  if (!good) fail(MB_INTERNAL, "The first line of %s does not describe a kernel.", path.c_str());
  return entry;
}

std::string read_text(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return file ? text.str() : std::string();
}

uint32_t function_attribute(const Context &context, FunctionHandle function, int which) {
  int value = 0;
  context.check(driver().cuFuncGetAttribute(&value, which, function), "Reading an attribute of a kernel");
  return static_cast<uint32_t>(value);
}

}  // namespace

Kernels::Kernels(std::shared_ptr<Context> context, std::string folder)
    : context_(std::move(context)), folder_(std::move(folder)) {}

Kernels::~Kernels() {
  if (driver().cuCtxSetCurrent(context_->handle) != kSuccess) return;
  for (const auto &[name, kernel] : kernels_) driver().cuModuleUnload(kernel->module);
}

void Kernels::prepare(const std::vector<KernelName> &names) {
  const std::lock_guard<std::mutex> turn(preparing_);
  std::set<KernelName> wanted;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const KernelName &name : names) {
      if (kernels_.count(name) == 0) wanted.insert(name);
    }
  }
  if (wanted.empty()) return;
  const std::vector<KernelName> missing(wanted.begin(), wanted.end());
  const auto start = std::chrono::steady_clock::now();
  wanted_ += missing.size();
  std::atomic<size_t> made{0};
  std::exception_ptr failure;
  try {
    gpu::in_parallel(missing.size(), kMaxThreads, [&](size_t i) {
      std::unique_ptr<Kernel> kernel = load(missing[i]);
      const std::lock_guard<std::mutex> lock(mutex_);
      kernels_[missing[i]] = std::move(kernel);
      made++;
    });
  } catch (...) {
    failure = std::current_exception();
    wanted_ -= missing.size() - made;
  }
  nanoseconds_ += static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  if (failure) std::rethrow_exception(failure);
}

const Kernel &Kernels::get(const KernelName &name) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = kernels_.find(name);
    if (found != kernels_.end()) return *found->second;
  }
  prepare({name});
  const std::lock_guard<std::mutex> lock(mutex_);
  return *kernels_.at(name);
}

std::unique_ptr<Kernel> Kernels::load(const KernelName &name) const {
  const char *kernel_name = name.kernel.c_str();
  if (folder_.empty()) {
    fail(MB_UNSUPPORTED, "The cuda device was opened without a folder of compiled kernels (option \"ptx\").");
  }
  const std::string path = folder_ + "/" + context_->architecture + "/" + name.kernel + ".ptx";
  const std::string text = read_text(path);
  if (text.empty()) {
    fail(MB_UNSUPPORTED,
         "The kernel %s of the family %s is not in the folder of compiled kernels: %s cannot be read.", kernel_name,
         name.family.c_str(), path.c_str());
  }
  context_->enter();
  auto kernel = std::make_unique<Kernel>();
  const std::string entry = read_head(text, *kernel, path);
  char log[kLogBytes] = "";
  int options[] = {kJitErrorBuffer, kJitErrorBytes};
  void *values[] = {log, reinterpret_cast<void *>(kLogBytes)};
  const Result result = driver().cuModuleLoadDataEx(&kernel->module, text.c_str(), 2, options, values);
  if (result != kSuccess) {
    log[kLogBytes - 1] = 0;
    const std::string reason = result_text(result);
    if (result == kErrorOutOfMemory) context_->check(result, "Loading a kernel");
    fail(MB_UNSUPPORTED, "The kernel %s does not compile on the GPU %s: %s. The driver's log: %s", kernel_name,
         context_->name.c_str(),
         reason.c_str(), log[0] != 0 ? log : "(empty)");
  }
  try {
    context_->check(driver().cuModuleGetFunction(&kernel->function, kernel->module, entry.c_str()),
                    "Finding a kernel in its module");
    kernel->max_threads = function_attribute(*context_, kernel->function, kFunctionMaxThreads);
    kernel->threadgroup_bytes = function_attribute(*context_, kernel->function, kFunctionSharedBytes);
    kernel->registers = function_attribute(*context_, kernel->function, kFunctionRegisters);
    kernel->local_bytes = function_attribute(*context_, kernel->function, kFunctionLocalBytes);
  } catch (...) {
    driver().cuModuleUnload(kernel->module);
    throw;
  }
  return kernel;
}

std::string Kernels::info() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return "{\"wanted\":" + std::to_string(wanted_) + ",\"ready\":" + std::to_string(kernels_.size()) +
         ",\"fromArchive\":0,\"libraries\":" + std::to_string(kernels_.size()) +
         ",\"milliseconds\":" + std::to_string(nanoseconds_ / 1000000) + ",\"archives\":{}}";
}

}  // namespace mb::cuda
