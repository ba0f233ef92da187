/**
 * The C ABI as Deno sees it: each row stands below its line of `dylib/markbase.h`. Handles travel as `usize` (a bigint), since
 * making a pointer object out of an address would need the unrestricted --allow-ffi. A row named `…_async` is
 * the same function called on another thread.
 */
export const symbols = {
  // uint32_t mb_abi_version(void)
  mb_abi_version: { parameters: [], result: "u32" },
  // int32_t mb_library_info(char *text, uint64_t cap, uint64_t *length, char *err, uint64_t err_cap)
  mb_library_info: { parameters: ["buffer", "u64", "buffer", "buffer", "u64"], result: "i32" },
  // int32_t mb_echo(uint64_t u, int64_t i, uint64_t *out, char *err, uint64_t err_cap)
  mb_echo: { parameters: ["u64", "i64", "buffer", "buffer", "u64"], result: "i32" },
  mb_echo_async: {
    name: "mb_echo",
    parameters: ["u64", "i64", "buffer", "buffer", "u64"],
    result: "i32",
    nonblocking: true,
  },

  // int32_t mb_device_open(const char *kind, uint64_t kind_length, const char *options, uint64_t options_length,
  //                        mb_device **out, char *err, uint64_t err_cap)
  mb_device_open: {
    parameters: ["buffer", "u64", "buffer", "u64", "buffer", "buffer", "u64"],
    result: "i32",
  },
  mb_device_open_async: {
    name: "mb_device_open",
    parameters: ["buffer", "u64", "buffer", "u64", "buffer", "buffer", "u64"],
    result: "i32",
    nonblocking: true,
  },
  // int32_t mb_device_info(mb_device *device, char *text, uint64_t cap, uint64_t *length, char *err, uint64_t err_cap)
  mb_device_info: { parameters: ["usize", "buffer", "u64", "buffer", "buffer", "u64"], result: "i32" },
  // int32_t mb_device_memory(mb_device *device, uint64_t *values, char *err, uint64_t err_cap)
  mb_device_memory: { parameters: ["usize", "buffer", "buffer", "u64"], result: "i32" },
  // void mb_device_release(mb_device *device)
  mb_device_release: { parameters: ["usize"], result: "void" },

  // int32_t mb_buffer_create(mb_device *device, uint64_t bytes, mb_buffer **out, char *err, uint64_t err_cap)
  mb_buffer_create: { parameters: ["usize", "u64", "buffer", "buffer", "u64"], result: "i32" },
  // int32_t mb_buffer_map(mb_device *device, const char *path, uint64_t path_length, uint64_t offset, uint64_t bytes,
  //                       mb_buffer **out, char *err, uint64_t err_cap)
  mb_buffer_map: {
    parameters: ["usize", "buffer", "u64", "u64", "u64", "buffer", "buffer", "u64"],
    result: "i32",
  },
  mb_buffer_map_async: {
    name: "mb_buffer_map",
    parameters: ["usize", "buffer", "u64", "u64", "u64", "buffer", "buffer", "u64"],
    result: "i32",
    nonblocking: true,
  },
  // uint64_t mb_buffer_size(mb_buffer *buffer)
  mb_buffer_size: { parameters: ["usize"], result: "u64" },
  // int32_t mb_buffer_read(mb_buffer *buffer, uint64_t offset, void *destination, uint64_t bytes, char *err,
  //                        uint64_t err_cap)
  mb_buffer_read: { parameters: ["usize", "u64", "buffer", "u64", "buffer", "u64"], result: "i32" },
  mb_buffer_read_async: {
    name: "mb_buffer_read",
    parameters: ["usize", "u64", "buffer", "u64", "buffer", "u64"],
    result: "i32",
    nonblocking: true,
  },
  // int32_t mb_buffer_write(mb_buffer *buffer, uint64_t offset, const void *source, uint64_t bytes, char *err,
  //                         uint64_t err_cap)
  mb_buffer_write: { parameters: ["usize", "u64", "buffer", "u64", "buffer", "u64"], result: "i32" },
  mb_buffer_write_async: {
    name: "mb_buffer_write",
    parameters: ["usize", "u64", "buffer", "u64", "buffer", "u64"],
    result: "i32",
    nonblocking: true,
  },
  // int32_t mb_buffer_copy(mb_buffer *destination, uint64_t destination_offset, mb_buffer *source,
  //                        uint64_t source_offset, uint64_t bytes, char *err, uint64_t err_cap)
  mb_buffer_copy: { parameters: ["usize", "u64", "usize", "u64", "u64", "buffer", "u64"], result: "i32" },
  // int32_t mb_buffer_fill(mb_buffer *buffer, uint64_t offset, uint64_t bytes, uint32_t byte_value, char *err,
  //                        uint64_t err_cap)
  mb_buffer_fill: { parameters: ["usize", "u64", "u64", "u32", "buffer", "u64"], result: "i32" },
  // void mb_buffer_release(mb_buffer *buffer)
  mb_buffer_release: { parameters: ["usize"], result: "void" },

  // int32_t mb_pass_compile(mb_device *device, const void *plan, uint64_t plan_bytes, mb_buffer *const *buffers,
  //                         uint64_t buffer_count, mb_pass **out, char *err, uint64_t err_cap)
  mb_pass_compile: {
    parameters: ["usize", "buffer", "u64", "buffer", "u64", "buffer", "buffer", "u64"],
    result: "i32",
  },
  mb_pass_compile_async: {
    name: "mb_pass_compile",
    parameters: ["usize", "buffer", "u64", "buffer", "u64", "buffer", "buffer", "u64"],
    result: "i32",
    nonblocking: true,
  },
  // int32_t mb_pass_run(mb_pass *pass, const void *input, uint64_t input_bytes, void *output, uint64_t output_bytes,
  //                     uint64_t *stats, char *err, uint64_t err_cap)
  mb_pass_run: {
    parameters: ["usize", "buffer", "u64", "buffer", "u64", "buffer", "buffer", "u64"],
    result: "i32",
  },
  mb_pass_run_async: {
    name: "mb_pass_run",
    parameters: ["usize", "buffer", "u64", "buffer", "u64", "buffer", "buffer", "u64"],
    result: "i32",
    nonblocking: true,
  },
  // int32_t mb_pass_start(mb_pass *pass, const void *input, uint64_t input_bytes, char *err, uint64_t err_cap)
  mb_pass_start: { parameters: ["usize", "buffer", "u64", "buffer", "u64"], result: "i32" },
  // int32_t mb_pass_follow(mb_pass *pass, const void *input, uint64_t input_bytes, const double *draws,
  //                        uint64_t draw_count, uint64_t output_bytes, char *err, uint64_t err_cap)
  mb_pass_follow: {
    parameters: ["usize", "buffer", "u64", "buffer", "u64", "u64", "buffer", "u64"],
    result: "i32",
  },
  // void mb_pass_drop(mb_pass *pass)
  mb_pass_drop: { parameters: ["usize"], result: "void" },
  // uint32_t mb_pass_wait(mb_pass *pass, uint64_t nanoseconds)
  mb_pass_wait: { parameters: ["usize", "u64"], result: "u32" },
  mb_pass_wait_async: {
    name: "mb_pass_wait",
    parameters: ["usize", "u64"],
    result: "u32",
    nonblocking: true,
  },
  // int32_t mb_pass_finish(mb_pass *pass, void *output, uint64_t output_bytes, uint64_t *stats, char *err,
  //                        uint64_t err_cap)
  mb_pass_finish: { parameters: ["usize", "buffer", "u64", "buffer", "buffer", "u64"], result: "i32" },
  mb_pass_finish_async: {
    name: "mb_pass_finish",
    parameters: ["usize", "buffer", "u64", "buffer", "buffer", "u64"],
    result: "i32",
    nonblocking: true,
  },
  // int32_t mb_pass_time(mb_pass *pass, const void *input, uint64_t input_bytes, double *seconds, uint64_t repetitions,
  //                      char *err, uint64_t err_cap)
  mb_pass_time: { parameters: ["usize", "buffer", "u64", "buffer", "u64", "buffer", "u64"], result: "i32" },
  mb_pass_time_async: {
    name: "mb_pass_time",
    parameters: ["usize", "buffer", "u64", "buffer", "u64", "buffer", "u64"],
    result: "i32",
    nonblocking: true,
  },
  // void mb_pass_cancel(mb_pass *pass)
  mb_pass_cancel: { parameters: ["usize"], result: "void" },
  // void mb_pass_resume(mb_pass *pass)
  mb_pass_resume: { parameters: ["usize"], result: "void" },
  // int32_t mb_pass_info(mb_pass *pass, char *text, uint64_t cap, uint64_t *length, char *err, uint64_t err_cap)
  mb_pass_info: { parameters: ["usize", "buffer", "u64", "buffer", "buffer", "u64"], result: "i32" },
  // void mb_pass_release(mb_pass *pass)
  mb_pass_release: { parameters: ["usize"], result: "void" },
} as const satisfies Deno.ForeignLibraryInterface;

/** `MB_ABI_VERSION` that this table was written for. */
export const ABI_VERSION = 4;
