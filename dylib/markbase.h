/*
 * markbase.h: the whole C ABI of the markbase library.
 *
 * Rules that hold for every function:
 *  - Plain C. No exception, callback, or struct by value crosses it.
 *  - A fallible call returns an mb_status (0 = MB_OK) and writes a NUL-terminated UTF-8 text into the caller's
 *    (err, err_cap) on failure. err may be null when err_cap is 0. Errors are never kept inside the library: with
 *    nonblocking calls a stored text would be overwritten by another thread.
 *  - Strings go in as (pointer, byte length) and need no terminator.
 *  - Handles are opaque and reference counted: a pass keeps its device and buffers alive. Each *_release drops the
 *    caller's one reference; releasing null is allowed. A handle may be used from any thread of the process.
 *  - Data comes back in caller-owned buffers. All sizes and offsets are 64-bit bytes unless said otherwise.
 */
#ifndef MARKBASE_H
#define MARKBASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define MB_EXPORT __declspec(dllexport)
#else
#define MB_EXPORT __attribute__((visibility("default")))
#endif

#define MB_ABI_VERSION 4u

typedef enum mb_status {
  MB_OK = 0,
  MB_INVALID_ARGUMENT = 1, /* null or out-of-range argument of this call */
  MB_INVALID_PLAN = 2,     /* the plan does not decode or fails a check */
  MB_INVALID_INPUT = 3,    /* the input block of a run fails a check */
  MB_OUT_OF_MEMORY = 4,
  MB_IO = 5,          /* a file cannot be opened, read or mapped */
  MB_UNSUPPORTED = 6, /* the device has no kernel for this op, format or shape */
  MB_NO_DEVICE = 7,   /* no such device on this machine */
  MB_DEVICE_LOST = 8, /* the device failed during a run; outputs are not readable */
  MB_TIMEOUT = 9,     /* the device gave up on a command buffer */
  MB_CANCELLED = 10,
  MB_NOT_FINITE = 11, /* debug check: an op produced NaN or Inf; the text names it */
  MB_INTERNAL = 12
} mb_status;

typedef struct mb_device mb_device;
typedef struct mb_buffer mb_buffer;
typedef struct mb_pass mb_pass;

/* ---- library ---------------------------------------------------------------------------------------------- */

/* MB_ABI_VERSION of the compiled library. */
MB_EXPORT uint32_t mb_abi_version(void);

/* JSON text about the build (compiler, target, CPU feature levels compiled in, devices compiled in) into
 * (text, cap); *length gets the full byte length without terminator, also when cap was too small
 * (then MB_INVALID_ARGUMENT). */
MB_EXPORT int32_t mb_library_info(char *text, uint64_t cap, uint64_t *length, char *err, uint64_t err_cap);

/* Returns its arguments through out[0] and out[1] (the second as two's complement): proves how 64-bit values
 * cross the boundary. */
MB_EXPORT int32_t mb_echo(uint64_t u, int64_t i, uint64_t *out, char *err, uint64_t err_cap);

/* ---- device ----------------------------------------------------------------------------------------------- */

/* kind: "cpu", "metal" or "cuda". options: a JSON object or empty; cpu knows {"threads": n, "level":
 * "scalar"|"avx2"|"avx512"|"amx"|"neon", "interleave": 0 to read weights where they lie} (0 threads or absence: all cores; level
 * absent: best of this CPU; interleave absent: copies in another layout where memory allows); metal knows
 * {"cache": folder} where it keeps compiled kernels (absent: nowhere); cuda knows {"ptx": folder of compiled kernels,
 * "ordinal": which GPU, "timed": 1 to time each kernel, "early_start": 0 to keep each waiting for the one before}; both know
 * {"matrix_units": 1 or 0} for decode rows in fast mode (absent: 0). */
MB_EXPORT int32_t mb_device_open(const char *kind, uint64_t kind_length, const char *options, uint64_t options_length,
                                 mb_device **out, char *err, uint64_t err_cap);

/* JSON text: {kind, name, level, threads, memoryBytes, weightAlignment, maxBufferBytes, unifiedMemory}; metal adds
 * {recommendedMaxWorkingSetSize, maxThreadsPerThreadgroup, threadgroupBytes, system, storage, residency, pipelines}. May be
 * called while another thread is in mb_pass_compile: pipelines {wanted, ready, …} then shows how far that is. */
MB_EXPORT int32_t mb_device_info(mb_device *device, char *text, uint64_t cap, uint64_t *length, char *err,
                                 uint64_t err_cap);

/* values (8 × u64): [0] mapped bytes, [1] buffer bytes (mb_buffer_create), [2] repacked weight bytes,
 * [3] scratch bytes, [4] peak of [1]+[2]+[3], [5] live buffers, [6] live passes,
 * [7] of [0], bytes that repacked weights are read instead of. */
MB_EXPORT int32_t mb_device_memory(mb_device *device, uint64_t *values, char *err, uint64_t err_cap);

MB_EXPORT void mb_device_release(mb_device *device);

/* ---- buffer ----------------------------------------------------------------------------------------------- */

/* A zero-filled read-write buffer. Pages are committed lazily where the system allows. bytes > 0. */
MB_EXPORT int32_t mb_buffer_create(mb_device *device, uint64_t bytes, mb_buffer **out, char *err, uint64_t err_cap);

/* Maps bytes [offset, offset + bytes) of a file, read-only and shared between processes. offset need not be
 * page-aligned. The range must lie inside the file. */
MB_EXPORT int32_t mb_buffer_map(mb_device *device, const char *path, uint64_t path_length, uint64_t offset,
                                uint64_t bytes, mb_buffer **out, char *err, uint64_t err_cap);

MB_EXPORT uint64_t mb_buffer_size(mb_buffer *buffer); /* bytes; 0 for null */

MB_EXPORT int32_t mb_buffer_read(mb_buffer *buffer, uint64_t offset, void *destination, uint64_t bytes, char *err,
                                 uint64_t err_cap);
MB_EXPORT int32_t mb_buffer_write(mb_buffer *buffer, uint64_t offset, const void *source, uint64_t bytes, char *err,
                                  uint64_t err_cap);
/* Copies inside the device; the ranges must not overlap. */
MB_EXPORT int32_t mb_buffer_copy(mb_buffer *destination, uint64_t destination_offset, mb_buffer *source,
                                 uint64_t source_offset, uint64_t bytes, char *err, uint64_t err_cap);
MB_EXPORT int32_t mb_buffer_fill(mb_buffer *buffer, uint64_t offset, uint64_t bytes, uint32_t byte_value, char *err,
                                 uint64_t err_cap);

MB_EXPORT void mb_buffer_release(mb_buffer *buffer);

/* ---- pass ------------------------------------------------------------------------------------------------- */

/* Decodes and checks a plan (plan.h) against its buffers, chooses kernels, repacks weights where that pays.
 * buffers[i] binds buffer record i; bytes of weights must not change as long as the pass lives. Call it nonblocking. */
MB_EXPORT int32_t mb_pass_compile(mb_device *device, const void *plan, uint64_t plan_bytes, mb_buffer *const *buffers,
                                  uint64_t buffer_count, mb_pass **out, char *err, uint64_t err_cap);

/* Runs the plan once. input is an input block (input.h). After completion the tensors of the plan's output list
 * whose bit is set in the block's output mask are copied, live rows only, one after another into output;
 * output_bytes must be exactly their sum. stats (8 × u64, may be null): [0] wall ns, [1] device ns,
 * [2] dispatches, [3] command buffers, [4] waits, [5] whether mb_pass_follow began it,
 * [6] whether it began another one in its place, [7] reserved. Runs on one device are serialised. */
MB_EXPORT int32_t mb_pass_run(mb_pass *pass, const void *input, uint64_t input_bytes, void *output,
                              uint64_t output_bytes, uint64_t *stats, char *err, uint64_t err_cap);

/* Begins a run on a thread of the library, one at a time of each pass, and returns at once; input is copied. That
 * thread stays awake for a while after a run, so that the next begins sooner than on a thread that must be woken. */
MB_EXPORT int32_t mb_pass_start(mb_pass *pass, const void *input, uint64_t input_bytes, char *err, uint64_t err_cap);

/* Has the library begin the next run when the one that was started ends, so that the device does not wait for the
 * caller: the tokens of its input become those that will most likely be drawn from what that run gives in output_bytes
 * bytes, and its adjustments what penalties make of them; draws (draw_count f64, see guess.h) says how each row's token
 * is drawn. mb_pass_start takes that run over if it is given the very same block, and ends it otherwise. Runs that were
 * started on the device meanwhile come first. Nothing follows a run that failed or has ended already. Until mb_pass_start
 * or mb_pass_drop, write nothing that the run may write; of what the run before it left in buffers, its outputs alone can
 * be read, on devices whose memory is the host's. Where all logits decide a draw, no other thread runs the pass until then. */
MB_EXPORT int32_t mb_pass_follow(mb_pass *pass, const void *input, uint64_t input_bytes, const double *draws,
                                 uint64_t draw_count, uint64_t output_bytes, char *err, uint64_t err_cap);

/* Ends a run that mb_pass_follow had begun and nobody has asked for, and waits for its end. */
MB_EXPORT void mb_pass_drop(mb_pass *pass);

/* Waits for the end of the run that was started, at most so long; 0 if it is still under way, else 1. */
MB_EXPORT uint32_t mb_pass_wait(mb_pass *pass, uint64_t nanoseconds);

/* Waits for the end of the run that was started, gives what mb_pass_run would and returns its status. */
MB_EXPORT int32_t mb_pass_finish(mb_pass *pass, void *output, uint64_t output_bytes, uint64_t *stats, char *err,
                                 uint64_t err_cap);

/* As mb_pass_run, repeated; seconds[i] gets the device time of repetition i (what benchmarks call). Nothing is
 * copied out. */
MB_EXPORT int32_t mb_pass_time(mb_pass *pass, const void *input, uint64_t input_bytes, double *seconds,
                               uint64_t repetitions, char *err, uint64_t err_cap);

/* From here on every run of this pass, a running one included, ends with MB_CANCELLED at its next op, until
 * mb_pass_resume. (A request that ended with the current run could hit the next one instead, when it comes late.) */
MB_EXPORT void mb_pass_cancel(mb_pass *pass);

/* Lets a cancelled pass run again. */
MB_EXPORT void mb_pass_resume(mb_pass *pass);

/* JSON text: {ops, dispatches, scratchBytes, repackedBytes, kernels: [{op, layer, kernel, dispatches}]}, of a run with one
 * decode row at the end of the longest context; metal adds {barriers, pipelines}. */
MB_EXPORT int32_t mb_pass_info(mb_pass *pass, char *text, uint64_t cap, uint64_t *length, char *err, uint64_t err_cap);

MB_EXPORT void mb_pass_release(mb_pass *pass);

#ifdef __cplusplus
}
#endif
#endif
