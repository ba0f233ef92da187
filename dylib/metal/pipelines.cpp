#include "pipelines.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "../options.h"
#include "../gpu/parallel.h"
#include "../gpu/shaders.h"

namespace mb::metal {

namespace {

constexpr unsigned kMaxThreads = 8;

uint64_t fnv1a(const std::string &text, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Kernels of different families next to each other, so that the threads do not wait for one library.
std::vector<KernelName> interleaved(const std::vector<KernelName> &kernels) {
  std::map<std::string, std::vector<KernelName>> by_family;
  for (const KernelName &kernel : kernels) by_family[kernel.family].push_back(kernel);
  std::vector<KernelName> mixed;
  for (size_t turn = 0; mixed.size() < kernels.size(); turn++) {
    for (const auto &[name, members] : by_family) {
      if (turn < members.size()) mixed.push_back(members[turn]);
    }
  }
  return mixed;
}

}  // namespace

Pipelines::Pipelines(std::shared_ptr<Context> context, std::string cache)
    : context_(std::move(context)), cache_(std::move(cache)) {
  if (!cache_.empty()) mkdir(cache_.c_str(), 0777);  // where that fails, saving an archive tells
}

void Pipelines::prepare(const std::vector<KernelName> &kernels) {
  const std::lock_guard<std::mutex> turn(preparing_);
  std::vector<KernelName> missing;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const KernelName &kernel : kernels) {
      const bool listed = std::any_of(missing.begin(), missing.end(),
                                      [&](const KernelName &m) {
                                         return m.family == kernel.family && m.kernel == kernel.kernel;
                                       });
      if (!listed && pipelines_.count(kernel) == 0) missing.push_back(kernel);
    }
  }
  if (missing.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  missing = interleaved(missing);
  wanted_ += missing.size();
  std::atomic<size_t> made{0};
  std::exception_ptr failure;
  try {
    gpu::in_parallel(missing.size(), kMaxThreads, [&](size_t i) {
      const PoolScope pool;
      std::unique_ptr<Pipeline> pipeline = make(missing[i]);
      const std::lock_guard<std::mutex> lock(mutex_);
      pipelines_[missing[i]] = std::move(pipeline);
      made++;
    });
  } catch (...) {
    failure = std::current_exception();
    wanted_ -= missing.size() - made;
  }
  const PoolScope pool;
  std::vector<Archive *> archives;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto &[name, family] : families_) {
      if (family->shown != nullptr) archives.push_back(family->shown);
    }
  }
  for (Archive *archive : archives) archive->save();
  nanoseconds_ += static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  if (failure) std::rethrow_exception(failure);
}

const Pipeline &Pipelines::get(const KernelName &kernel) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pipelines_.find(kernel);
    if (found != pipelines_.end()) return *found->second;
  }
  prepare({kernel});
  const std::lock_guard<std::mutex> lock(mutex_);
  return *pipelines_.at(kernel);
}

Pipelines::Family &Pipelines::family(const std::string &name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Family> &entry = families_[name];
  if (!entry) entry = std::make_unique<Family>();
  return *entry;
}

// The caller holds family.mutex.
void Pipelines::load(Family &family, const std::string &name) {
  if (family.library) return;
  const std::string source = gpu::shader_source(name);
  if (source.empty()) fail(MB_INTERNAL, "The library has no kernels of the family \"%s\".", name.c_str());
  const auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
  // Kernels count on the order of operations and on NaN being told apart; those that may be loose use fast:: functions.
  if (system_at_least(15)) {
    options->setMathMode(MTL::MathModeSafe);
  } else {
    options->setFastMathEnabled(false);
  }
  options->setLanguageVersion(MTL::LanguageVersion3_0);
  NS::Error *error = nullptr;
  family.library = NS::TransferPtr(context_->device->newLibrary(ns_string(source), options.get(), &error));
  if (!family.library) {
    fail(MB_UNSUPPORTED, "The kernels of \"%s\" do not compile on the GPU %s: %s", name.c_str(), context_->name.c_str(),
         error_text(error).c_str());
  }
  libraries_++;
  std::string path;
  if (!cache_.empty()) {
    char key[24];
    const uint64_t hash = fnv1a(source, fnv1a(context_->system, fnv1a(context_->name)));
    snprintf(key, sizeof key, "%016llx", static_cast<unsigned long long>(hash));
    path = cache_ + "/" + name + "-" + key + ".archive";
  }
  family.archive = std::make_unique<Archive>(context_, path);
  family.shown = family.archive.get();
}

std::unique_ptr<Pipeline> Pipelines::make(const KernelName &kernel) {
  Family &family = this->family(kernel.family);
  {
    const std::lock_guard<std::mutex> lock(family.mutex);
    load(family, kernel.family);
  }
  const auto function = NS::TransferPtr(family.library->newFunction(ns_string(kernel.kernel)));
  if (!function) {
    fail(MB_INTERNAL, "The family \"%s\" has no kernel \"%s\".", kernel.family.c_str(), kernel.kernel.c_str());
  }
  const auto descriptor = NS::TransferPtr(MTL::ComputePipelineDescriptor::alloc()->init());
  descriptor->setComputeFunction(function.get());
  descriptor->setLabel(ns_string(kernel.kernel));
  auto pipeline = std::make_unique<Pipeline>();
  bool from_archive = false;
  std::string error;
  pipeline->state = family.archive->make(*descriptor.get(), from_archive, error);
  if (!pipeline->state) {
    fail(MB_UNSUPPORTED, "The kernel %s does not compile on the GPU %s: %s", kernel.kernel.c_str(), context_->name.c_str(),
         error.c_str());
  }
  pipeline->max_threads = static_cast<uint32_t>(pipeline->state->maxTotalThreadsPerThreadgroup());
  const auto width = static_cast<uint32_t>(pipeline->state->threadExecutionWidth());
  if (width != 32) {
    fail(MB_UNSUPPORTED, "Simdgroups of the GPU %s have %u threads; the kernels need 32.", context_->name.c_str(), width);
  }
  if (from_archive) from_archive_++;
  return pipeline;
}

std::string Pipelines::info() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text = "{\"wanted\":" + std::to_string(wanted_) + ",\"ready\":" + std::to_string(pipelines_.size()) +
                     ",\"fromArchive\":" + std::to_string(from_archive_) + ",\"libraries\":" + std::to_string(libraries_) +
                     ",\"milliseconds\":" + std::to_string(nanoseconds_ / 1000000) + ",\"archives\":{";
  bool first = true;
  for (const auto &[name, family] : families_) {
    const Archive *archive = family->shown;
    if (archive == nullptr) continue;
    text += (first ? "" : ",") + json_text(name) + ":" + archive->info();
    first = false;
  }
  return text + "}}";
}

}  // namespace mb::metal
