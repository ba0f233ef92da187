// The Apple GPU as a device, through metal-cpp.
#include <unistd.h>

#include "../options.h"
#include "pass.h"

namespace mb {

namespace metal {

namespace {

constexpr uint64_t kWeightAlignment = 16;  // bytes; kernels load four words at once

const char *kStorage =
    "{\"created\":\"shared\",\"mapped\":\"shared, without a copy\",\"why\":\"CPU and GPU share the memory: a private copy "
    "would cost its bytes and save no time\"}";

class MetalDevice final : public Device {
 public:
  MetalDevice(const std::string &cache, bool matrix_units)
      : context_(std::make_shared<Context>()), shared_(std::make_shared<Shared>(context_, cache, memory)) {
    context_->limits.matrix_units = matrix_units;
  }

  ~MetalDevice() override {
    const PoolScope pool;
    shared_.reset();
    context_.reset();
  }

  std::shared_ptr<Buffer> create_buffer(uint64_t bytes) override { return MetalBuffer::create(context_, bytes); }

  std::shared_ptr<Buffer> map_file(const std::string &path, uint64_t offset, uint64_t bytes) override {
    return MetalBuffer::map(context_, path, offset, bytes);
  }

  std::unique_ptr<Pass> compile(std::unique_ptr<Plan> plan) override { return compile_metal_pass(std::move(plan), shared_); }

  std::string info() const override {
    const PoolScope pool;
    const uint64_t physical = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const bool unified = context_->device->hasUnifiedMemory();
    return "{\"kind\":\"metal\",\"name\":" + json_text(context_->name) + ",\"level\":\"" + context_->limits.family +
           "\",\"threads\":0,\"memoryBytes\":" + std::to_string(physical) +
           ",\"weightAlignment\":" + std::to_string(kWeightAlignment) +
           ",\"maxBufferBytes\":" + std::to_string(context_->max_buffer_bytes) +
           ",\"unifiedMemory\":" + (unified ? "true" : "false") +
           ",\"recommendedMaxWorkingSetSize\":" + std::to_string(context_->working_set_bytes) +
           ",\"maxThreadsPerThreadgroup\":" + std::to_string(context_->limits.max_threads) +
           ",\"threadgroupBytes\":" + std::to_string(context_->limits.threadgroup_bytes) +
           ",\"system\":" + json_text(context_->system) + ",\"storage\":" + kStorage +
           ",\"residency\":" + context_->residency->info() + ",\"pipelines\":" + shared_->pipelines.info() + "}";
  }

  uint64_t weight_alignment() const override { return kWeightAlignment; }

 private:
  std::shared_ptr<Context> context_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace

}  // namespace metal

std::shared_ptr<Device> open_metal_device(const std::string &options) {
  auto settings = read_options(options, "metal", {"cache", "matrix_units"});
  const std::string units = settings["matrix_units"];
  if (!units.empty() && units != "0" && units != "1") {
    fail(MB_INVALID_ARGUMENT, "The option matrix_units of the metal device is 0 or 1, not %.20s.", units.c_str());
  }
  return std::make_shared<metal::MetalDevice>(settings["cache"], units == "1");
}

}  // namespace mb
