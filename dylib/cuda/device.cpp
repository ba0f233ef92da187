// An NVIDIA GPU as a device, through the driver API.
#include "../options.h"
#include "pass.h"

namespace mb {

namespace cuda {

namespace {

constexpr uint64_t kWeightAlignment = 16;  // bytes; kernels load four words at once

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, const std::string &ptx, bool timed, bool early_start, bool matrix_units)
      : context_(std::make_shared<Context>(ordinal, early_start)),
        shared_(std::make_shared<Shared>(context_, ptx, timed, memory)) {
    context_->limits.matrix_units = matrix_units;
  }

  std::shared_ptr<Buffer> create_buffer(uint64_t bytes) override { return CudaBuffer::create(context_, bytes); }

  std::shared_ptr<Buffer> map_file(const std::string &path, uint64_t offset, uint64_t bytes) override {
    return CudaBuffer::map(context_, path, offset, bytes);
  }

  std::unique_ptr<Pass> compile(std::unique_ptr<Plan> plan) override { return compile_cuda_pass(std::move(plan), shared_); }

  std::string info() const override {
    const Context &c = *context_;
    return "{\"kind\":\"cuda\",\"name\":" + json_text(c.name) + ",\"level\":\"" + c.architecture +
           "\",\"threads\":0,\"memoryBytes\":" + std::to_string(c.memory_bytes) +
           ",\"weightAlignment\":" + std::to_string(kWeightAlignment) + ",\"maxBufferBytes\":" + std::to_string(c.memory_bytes) +
           ",\"unifiedMemory\":false,\"maxThreadsPerThreadgroup\":" + std::to_string(c.limits.max_threads) +
           ",\"threadgroupBytes\":" + std::to_string(c.limits.threadgroup_bytes) +
           ",\"multiprocessors\":" + std::to_string(c.multiprocessors) + ",\"l2Bytes\":" + std::to_string(c.l2_bytes) +
           ",\"system\":\"CUDA " + std::to_string(c.driver_version / 1000) + "." + std::to_string(c.driver_version % 1000 / 10) +
           "\",\"pipelines\":" + shared_->kernels.info() + "}";
  }

  uint64_t weight_alignment() const override { return kWeightAlignment; }

 private:
  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace

}  // namespace cuda

std::shared_ptr<Device> open_cuda_device(const std::string &options) {
  auto settings = read_options(options, "cuda", {"ptx", "ordinal", "timed", "early_start", "matrix_units"});
  const auto number = [&](const char *name, int otherwise) {
    return settings.count(name) == 0 ? otherwise : static_cast<int>(whole_number(settings[name], 9999, "cuda", name));
  };
  return std::make_shared<cuda::CudaDevice>(number("ordinal", 0), settings["ptx"], number("timed", 0) != 0,
                                            number("early_start", 1) != 0, number("matrix_units", 0) != 0);
}

}  // namespace mb
