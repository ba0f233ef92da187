// abi.cpp: the functions of markbase.h. Each checks its arguments, calls the device, and lets no exception out.
#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "shared_pass.h"
#include "status.h"

using namespace mb;

namespace {

constexpr uint64_t kDeviceMagic = 0x6d62646576696365;  // "mbdevice"
constexpr uint64_t kBufferMagic = 0x6d62627566666572;  // "mbbuffer"
constexpr uint64_t kPassMagic = 0x6d62706173735f5f;    // "mbpass__"

}  // namespace

struct mb_device {
  uint64_t magic = kDeviceMagic;
  std::shared_ptr<SharedDevice> shared;
};

struct mb_buffer {
  uint64_t magic = kBufferMagic;
  std::shared_ptr<SharedDevice> owner;
  std::shared_ptr<Buffer> buffer;
};

struct mb_pass {
  uint64_t magic = kPassMagic;
  std::shared_ptr<SharedPass> shared;
};

namespace {

using ull = unsigned long long;

SharedDevice &use(mb_device *device) {
  if (device == nullptr || device->magic != kDeviceMagic) fail(MB_INVALID_ARGUMENT, "device is not a device handle");
  return *device->shared;
}

Buffer &use(mb_buffer *buffer, const char *name) {
  if (buffer == nullptr || buffer->magic != kBufferMagic) fail(MB_INVALID_ARGUMENT, "%s is not a buffer handle", name);
  return *buffer->buffer;
}

std::shared_ptr<SharedPass> use(mb_pass *pass) {
  if (pass == nullptr || pass->magic != kPassMagic) fail(MB_INVALID_ARGUMENT, "pass is not a pass handle");
  return pass->shared;
}

void require(const void *pointer, const char *name) {
  if (pointer == nullptr) fail(MB_INVALID_ARGUMENT, "%s is null", name);
}

std::string text_of(const char *text, uint64_t length, const char *name) {
  if (text == nullptr && length > 0) fail(MB_INVALID_ARGUMENT, "%s is null but its length is %llu", name, ull(length));
  if (length > (1u << 30)) fail(MB_INVALID_ARGUMENT, "%s has %llu bytes, more than 2^30", name, ull(length));
  return length == 0 ? std::string() : std::string(text, length);
}

// Gives a text back by (text, cap, length).
void put_text(const std::string &from, char *text, uint64_t cap, uint64_t *length) {
  require(length, "length");
  *length = from.size();
  if (cap < from.size() + 1) {
    fail(MB_INVALID_ARGUMENT, "the text needs %llu bytes but cap is %llu", ull(from.size() + 1), ull(cap));
  }
  require(text, "text");
  memcpy(text, from.c_str(), from.size() + 1);
}

void check_range(const Buffer &buffer, const char *name, uint64_t offset, uint64_t bytes) {
  if (offset > buffer.size || bytes > buffer.size - offset) {
    fail(MB_INVALID_ARGUMENT, "bytes [%llu, %llu + %llu) are outside the %s of %llu bytes", ull(offset), ull(offset),
         ull(bytes), name, ull(buffer.size));
  }
}

void check_writable(const Buffer &buffer) {
  if (!buffer.writable) fail(MB_INVALID_ARGUMENT, "the buffer is a mapped file and read-only");
}

// Counts the buffer for as long as anything refers to it, and keeps its device alive. Both end with the last reference; what
// only remembers the buffer (a weak_ptr of the device itself, say) keeps neither.
mb_buffer *handle_of(const std::shared_ptr<SharedDevice> &owner, std::shared_ptr<Buffer> buffer,
                     std::atomic<uint64_t> Memory::*kind) {
  auto handle = std::make_unique<mb_buffer>();
  handle->owner = owner;
  Memory &memory = owner->device->memory;
  memory.buffers++;
  memory.*kind += buffer->size;
  memory.note_peak();
  Buffer *raw = buffer.get();
  handle->buffer = std::shared_ptr<Buffer>(raw, [held = owner, buffer = std::move(buffer), kind](Buffer *) mutable {
    Memory &counts = held->device->memory;
    counts.*kind -= buffer->size;
    counts.buffers--;
    buffer.reset();
    held.reset();
  });
  return handle.release();
}

// What a process read and compiled while it loaded leaves megabytes in the free lists of malloc, of each thread its own. Nothing
// will need them soon.
void give_back_free_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

void check_output(uint64_t needed, const void *output, uint64_t output_bytes) {
  if (needed != output_bytes) {
    fail(MB_INVALID_ARGUMENT, "output has %llu bytes but the selected outputs have %llu", ull(output_bytes),
         ull(needed));
  }
  if (needed > 0) require(output, "output");
}

void put_statistics(const RunStatistics &statistics, bool was_ahead, bool is_instead, uint64_t *stats) {
  if (stats == nullptr) return;
  const uint64_t all[8] = {statistics.wall_ns,         statistics.device_ns, statistics.dispatches,
                           statistics.command_buffers, statistics.waits,     was_ahead,            is_instead, 0};
  memcpy(stats, all, sizeof all);
}

std::string compiled_devices() {
  std::string names;
#if defined(MB_DEVICE_CPU)
  names += "\"cpu\",";
#endif
#if defined(MB_DEVICE_METAL)
  names += "\"metal\",";
#endif
#if defined(MB_DEVICE_CUDA)
  names += "\"cuda\",";
#endif
  if (!names.empty()) names.pop_back();
  return "[" + names + "]";
}

std::shared_ptr<Device> open_device(const std::string &kind, const std::string &options) {
  (void)options;
#if defined(MB_DEVICE_CPU)
  if (kind == "cpu") return open_cpu_device(options);
#endif
#if defined(MB_DEVICE_METAL)
  if (kind == "metal") return open_metal_device(options);
#endif
#if defined(MB_DEVICE_CUDA)
  if (kind == "cuda") return open_cuda_device(options);
#endif
  fail(MB_NO_DEVICE, "there is no device \"%s\" in this library; it was built with %s", kind.c_str(),
       compiled_devices().c_str());
}

std::string library_info() {
#if defined(__x86_64__)
  const char *arch = "x86_64";
#elif defined(__aarch64__)
  const char *arch = "aarch64";
#else
  const char *arch = "other";
#endif
#if defined(__APPLE__)
  const char *system = "darwin";
#else
  const char *system = "linux";
#endif
  std::string levels = "\"" MB_COMPILED_ISAS "\"";  // names with commas between
  for (size_t at = 0; (at = levels.find(',', at)) != std::string::npos; at += 3) levels.replace(at, 1, "\",\"");
  if (levels == "\"\"") levels.clear();
#if defined(__clang__)
  const std::string compiler = "clang++ " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__);
#else
  const std::string compiler = "g++ " + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__);
#endif
  return "{\"abiVersion\":" + std::to_string(MB_ABI_VERSION) + ",\"compiler\":\"" + compiler + "\",\"target\":\"" +
         arch + "-" + system + "\",\"levels\":[" + levels + "],\"devices\":" + compiled_devices() + "}";
}

}  // namespace

extern "C" {

uint32_t mb_abi_version(void) { return MB_ABI_VERSION; }

int32_t mb_library_info(char *text, uint64_t cap, uint64_t *length, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] { put_text(library_info(), text, cap, length); });
}

int32_t mb_echo(uint64_t u, int64_t i, uint64_t *out, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    require(out, "out");
    out[0] = u;
    out[1] = static_cast<uint64_t>(i);
  });
}

// ---- device

int32_t mb_device_open(const char *kind, uint64_t kind_length, const char *options, uint64_t options_length,
                       mb_device **out, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    require(out, "out");
    *out = nullptr;
    auto shared = std::make_shared<SharedDevice>();
    shared->device = open_device(text_of(kind, kind_length, "kind"), text_of(options, options_length, "options"));
    auto handle = std::make_unique<mb_device>();
    handle->shared = std::move(shared);
    *out = handle.release();
  });
}

int32_t mb_device_info(mb_device *device, char *text, uint64_t cap, uint64_t *length, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] { put_text(use(device).device->info(), text, cap, length); });
}

int32_t mb_device_memory(mb_device *device, uint64_t *values, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    const Memory &memory = use(device).device->memory;
    require(values, "values");
    const uint64_t all[8] = {memory.mapped, memory.created, memory.repacked, memory.scratch,
                             memory.peak,   memory.buffers, memory.passes,   memory.replaced};
    memcpy(values, all, sizeof all);
  });
}

void mb_device_release(mb_device *device) {
  if (device == nullptr || device->magic != kDeviceMagic) return;
  device->magic = 0;
  delete device;
}

// ---- buffer

int32_t mb_buffer_create(mb_device *device, uint64_t bytes, mb_buffer **out, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    require(out, "out");
    *out = nullptr;
    SharedDevice &shared = use(device);
    if (bytes == 0) fail(MB_INVALID_ARGUMENT, "a buffer of 0 bytes cannot be created");
    *out = handle_of(device->shared, shared.device->create_buffer(bytes), &Memory::created);
  });
}

int32_t mb_buffer_map(mb_device *device, const char *path, uint64_t path_length, uint64_t offset, uint64_t bytes,
                      mb_buffer **out, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    require(out, "out");
    *out = nullptr;
    SharedDevice &shared = use(device);
    const std::string name = text_of(path, path_length, "path");
    if (name.empty()) fail(MB_INVALID_ARGUMENT, "path is empty");
    if (name.find('\0') != std::string::npos) fail(MB_INVALID_ARGUMENT, "path has a NUL byte inside");
    uint64_t end;
    if (bytes == 0 || __builtin_add_overflow(offset, bytes, &end) || end > uint64_t(INT64_MAX)) {
      fail(MB_INVALID_ARGUMENT, "%llu bytes from offset %llu cannot be mapped", ull(bytes), ull(offset));
    }
    *out = handle_of(device->shared, shared.device->map_file(name, offset, bytes), &Memory::mapped);
  });
}

uint64_t mb_buffer_size(mb_buffer *buffer) {
  return buffer == nullptr || buffer->magic != kBufferMagic ? 0 : buffer->buffer->size;
}

int32_t mb_buffer_read(mb_buffer *buffer, uint64_t offset, void *destination, uint64_t bytes, char *err,
                       uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    Buffer &from = use(buffer, "buffer");
    check_range(from, "buffer", offset, bytes);
    if (bytes == 0) return;
    require(destination, "destination");
    from.read(offset, destination, bytes);
  });
}

int32_t mb_buffer_write(mb_buffer *buffer, uint64_t offset, const void *source, uint64_t bytes, char *err,
                        uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    Buffer &to = use(buffer, "buffer");
    check_writable(to);
    check_range(to, "buffer", offset, bytes);
    if (bytes == 0) return;
    require(source, "source");
    to.write(offset, source, bytes);
  });
}

int32_t mb_buffer_copy(mb_buffer *destination, uint64_t destination_offset, mb_buffer *source, uint64_t source_offset,
                       uint64_t bytes, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    Buffer &to = use(destination, "destination");
    Buffer &from = use(source, "source");
    if (destination->owner != source->owner) fail(MB_INVALID_ARGUMENT, "the buffers belong to different devices");
    check_writable(to);
    check_range(to, "destination", destination_offset, bytes);
    check_range(from, "source", source_offset, bytes);
    const uint64_t apart = destination_offset > source_offset ? destination_offset - source_offset
                                                              : source_offset - destination_offset;
    if (&to == &from && apart < bytes) fail(MB_INVALID_ARGUMENT, "the ranges of the copy overlap");
    if (bytes > 0) to.copy_from(destination_offset, from, source_offset, bytes);
  });
}

int32_t mb_buffer_fill(mb_buffer *buffer, uint64_t offset, uint64_t bytes, uint32_t byte_value, char *err,
                       uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    Buffer &to = use(buffer, "buffer");
    check_writable(to);
    check_range(to, "buffer", offset, bytes);
    if (byte_value > 255) fail(MB_INVALID_ARGUMENT, "byte_value is %u, more than 255", byte_value);
    if (bytes > 0) to.fill(offset, bytes, static_cast<uint8_t>(byte_value));
  });
}

void mb_buffer_release(mb_buffer *buffer) {
  if (buffer == nullptr || buffer->magic != kBufferMagic) return;
  buffer->magic = 0;
  delete buffer;
}

// ---- pass

int32_t mb_pass_compile(mb_device *device, const void *plan, uint64_t plan_bytes, mb_buffer *const *buffers,
                        uint64_t buffer_count, mb_pass **out, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    require(out, "out");
    *out = nullptr;
    SharedDevice &shared = use(device);
    require(plan, "plan");
    if (buffer_count > 0) require(buffers, "buffers");
    if (buffer_count > (1u << 16)) fail(MB_INVALID_ARGUMENT, "%llu buffers are more than 2^16", ull(buffer_count));
    std::vector<std::shared_ptr<Buffer>> bound;
    for (uint64_t i = 0; i < buffer_count; i++) {
      use(buffers[i], "an entry of buffers");
      if (buffers[i]->owner != device->shared) {
        fail(MB_INVALID_ARGUMENT, "buffer %llu belongs to another device", ull(i));
      }
      bound.push_back(buffers[i]->buffer);
    }
    std::unique_ptr<Plan> decoded =
        decode_plan(plan, plan_bytes, std::move(bound), shared.device->weight_alignment());
    auto pass = std::make_shared<SharedPass>();
    pass->owner = device->shared;
    shared.device->memory.passes++;  // ~SharedPass takes it back, also when compile throws
    pass->pass = shared.device->compile(std::move(decoded));
    const bool is_for_few_runs = pass->pass->plan->flags & kPlanInPlace;
    auto handle = std::make_unique<mb_pass>();
    handle->shared = std::move(pass);
    *out = handle.release();
    if (!is_for_few_runs) give_back_free_memory();  // which takes milliseconds: a tower's passes are made for each picture
  });
}

int32_t mb_pass_run(mb_pass *pass, const void *input, uint64_t input_bytes, void *output, uint64_t output_bytes,
                    uint64_t *stats, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    const std::shared_ptr<SharedPass> shared = use(pass);
    require(input, "input");
    mb_pass_drop(pass);
    put_statistics(run_once(*shared, input, input_bytes,
                            [&](uint64_t needed) {
                              check_output(needed, output, output_bytes);
                              return static_cast<uint8_t *>(output);
                            }),
                   false, false, stats);
  });
}

int32_t mb_pass_start(mb_pass *pass, const void *input, uint64_t input_bytes, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    std::shared_ptr<SharedPass> shared = use(pass);
    require(input, "input");
    if (input_bytes > (1ull << 32)) fail(MB_INVALID_INPUT, "%llu bytes are no input block", ull(input_bytes));
    const std::lock_guard<std::mutex> lock(shared->mutex);
    if (shared->started) fail(MB_INVALID_ARGUMENT, "another run of this pass was started and not finished");
    const bool is_ahead = shared->ahead && !shared->drops;
    const bool is_same = is_ahead && shared->ahead->input_bytes == input_bytes &&
                         memcmp(shared->ahead->input.data(), input, input_bytes) == 0;
    if (is_same && shared->pass->let_go()) {
      shared->started = std::move(shared->ahead);
      shared->ahead.reset();
      return;
    }
    auto run = copy_of(input, input_bytes);
    run->is_instead = is_ahead && !is_same;
    shared->drop_ahead();
    shared->owner->runner().give([run, shared]() mutable { run_started(std::move(shared), std::move(run)); });
    shared->started = std::move(run);
  });
}

int32_t mb_pass_follow(mb_pass *pass, const void *input, uint64_t input_bytes, const double *draws, uint64_t draw_count,
                       uint64_t output_bytes, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    const std::shared_ptr<SharedPass> shared = use(pass);
    require(input, "input");
    require(draws, "draws");
    if (input_bytes > (1ull << 32) || input_bytes < sizeof(InputHeader) || input_bytes % 4 != 0) {
      fail(MB_INVALID_INPUT, "%llu bytes are no input block", ull(input_bytes));
    }
    auto run = copy_of(input, input_bytes);
    const uint64_t rows = run->input[offsetof(InputHeader, rows) / 4];
    if (rows > run->input.size() - kInputHeaderWords) fail(MB_INVALID_INPUT, "the input block has fewer tokens than rows");
    run->draws = read_draws(draws, draw_count, rows, output_bytes);
    run->drawn_from = output_bytes;
    run->was_ahead = true;
    const std::lock_guard<std::mutex> lock(shared->mutex);
    const bool is_late = !shared->started || shared->started->is_over || shared->is_cancelled;
    if (!is_late) shared->started->next = std::move(run);
  });
}

void mb_pass_drop(mb_pass *pass) {
  if (pass == nullptr || pass->magic != kPassMagic) return;
  std::shared_ptr<StartedRun> dropped;
  {
    const std::lock_guard<std::mutex> lock(pass->shared->mutex);
    dropped = pass->shared->drop_ahead();
  }
  if (dropped) dropped->wait();
}

uint32_t mb_pass_wait(mb_pass *pass, uint64_t nanoseconds) {
  if (pass == nullptr || pass->magic != kPassMagic) return 1;
  std::shared_ptr<StartedRun> run;
  {
    const std::lock_guard<std::mutex> lock(pass->shared->mutex);
    run = pass->shared->started;
  }
  const auto most = std::chrono::nanoseconds(std::min<uint64_t>(nanoseconds, 1ull << 60));  // a sum with the time
  return !run || run->wait(most) ? 1 : 0;
}

int32_t mb_pass_finish(mb_pass *pass, void *output, uint64_t output_bytes, uint64_t *stats, char *err,
                       uint64_t err_cap) {
  int32_t status = MB_OK;
  const int32_t own = guarded(err, err_cap, [&] {
    const std::shared_ptr<SharedPass> shared = use(pass);
    std::shared_ptr<StartedRun> run;
    {
      const std::lock_guard<std::mutex> lock(shared->mutex);
      run = shared->started;
    }
    if (!run) fail(MB_INVALID_ARGUMENT, "no run of this pass was started");
    run->wait();
    {
      const std::lock_guard<std::mutex> lock(shared->mutex);
      if (shared->started == run) shared->started.reset();
    }
    status = run->status;
    if (status != MB_OK) {
      put_error(err, err_cap, run->error);
      return;
    }
    check_output(run->output.size(), output, output_bytes);
    if (output_bytes > 0) memcpy(output, run->output.data(), output_bytes);
    put_statistics(run->statistics, run->was_ahead, run->is_instead, stats);
  });
  return own != MB_OK ? own : status;
}

int32_t mb_pass_time(mb_pass *pass, const void *input, uint64_t input_bytes, double *seconds, uint64_t repetitions,
                     char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] {
    const std::shared_ptr<SharedPass> shared = use(pass);
    Pass &running = *shared->pass;
    require(input, "input");
    if (repetitions > 0) require(seconds, "seconds");
    mb_pass_drop(pass);
    const Input checked = check_input(*running.plan, input, input_bytes);
    const std::lock_guard<FairMutex> lock(shared->owner->run);
    begin_turn(*shared, false);
    for (uint64_t i = 0; i < repetitions; i++) {
      check_cancelled(running);
      seconds[i] = static_cast<double>(running.run(checked).device_ns) * 1e-9;
    }
  });
}

void mb_pass_cancel(mb_pass *pass) {
  if (pass == nullptr || pass->magic != kPassMagic) return;
  const std::lock_guard<std::mutex> lock(pass->shared->mutex);
  pass->shared->is_cancelled = true;
  pass->shared->drop_ahead();
  pass->shared->note_cancelled();
}

void mb_pass_resume(mb_pass *pass) {
  if (pass == nullptr || pass->magic != kPassMagic) return;
  const std::lock_guard<std::mutex> lock(pass->shared->mutex);
  pass->shared->is_cancelled = false;
  pass->shared->note_cancelled();
}

int32_t mb_pass_info(mb_pass *pass, char *text, uint64_t cap, uint64_t *length, char *err, uint64_t err_cap) {
  return guarded(err, err_cap, [&] { put_text(use(pass)->pass->info(), text, cap, length); });
}

void mb_pass_release(mb_pass *pass) {
  if (pass == nullptr || pass->magic != kPassMagic) return;
  mb_pass_drop(pass);
  pass->magic = 0;
  delete pass;
}

}  // extern "C"
