/** The tests' side of host.cpp: opens it once, and runs kernels of a source text. */
import { buildHost, softMetal } from "./build.ts";
import { fromFileUrl } from "./generator/paths.ts";

const P = "pointer", U = "u32", I = "i32", L = "u64", B = "buffer";
/** The table of host.cpp. */
export const symbols = {
  host_open: { parameters: [B, I, U, B, "usize"], result: P },
  open_nonblocking: {
    name: "host_open",
    parameters: [B, I, U, B, "usize"],
    result: P,
    nonblocking: true,
  },
  host_close: { parameters: [P], result: "void" },
  host_pipeline: { parameters: [P, B, I, U, I, B, "usize"], result: P },
  host_max_threads: { parameters: [P], result: U },
  host_execution_width: { parameters: [P], result: U },
  host_device_sizes: { parameters: [P], result: L },
  host_constant_string: { parameters: [B, "usize"], result: "void" },
  host_os: { parameters: [I], result: I },
  host_buffer: { parameters: [P, B, L, I], result: P },
  host_pages: { parameters: [L], result: P },
  host_free: { parameters: [P], result: "void" },
  host_no_copy: { parameters: [P, P, L], result: P },
  host_contents: { parameters: [P], result: P },
  host_length: { parameters: [P], result: L },
  host_release: { parameters: [P], result: "void" },
  host_begin: { parameters: [P], result: "void" },
  host_compute: { parameters: [P, I], result: "void" },
  host_compute_twice: { parameters: [P], result: "void" },
  host_use: { parameters: [P, P], result: "void" },
  host_set: { parameters: [P, P, L, U], result: "void" },
  host_bytes: { parameters: [P, B, L, U], result: "void" },
  host_threadgroup: { parameters: [P, L, U], result: "void" },
  host_groups: { parameters: [P, U, U, U, U, U, U], result: "void" },
  host_threads: { parameters: [P, U, U], result: "void" },
  host_indirect: { parameters: [P, P, L, U], result: "void" },
  host_barrier: { parameters: [P, P], result: "void" },
  host_end: { parameters: [P], result: "void" },
  host_blit: { parameters: [P], result: "void" },
  host_copy: { parameters: [P, P, L, P, L, L], result: "void" },
  host_fill: { parameters: [P, P, L, L, "u8"], result: "void" },
  host_end_blit: { parameters: [P], result: "void" },
  host_commit: { parameters: [P], result: "void" },
  host_status: { parameters: [P], result: I },
  host_error: { parameters: [P, B, "usize"], result: I },
  host_wait: { parameters: [P, B, B, "usize"], result: I },
  wait_nonblocking: { name: "host_wait", parameters: [P, B, B, "usize"], result: I, nonblocking: true },
  host_drop: { parameters: [P], result: "void" },
  host_event: { parameters: [P], result: P },
  host_event_value: { parameters: [P], result: L },
  host_signal: { parameters: [P, P, L], result: "void" },
  host_await: { parameters: [P, P, L], result: "void" },
  host_handler: { parameters: [P], result: I },
  host_residency: { parameters: [P, P, I], result: P },
  host_archive: { parameters: [P, B, B, I, B, "usize"], result: I },
  host_can_capture: { parameters: [], result: I },
  host_autorelease_without_pool: { parameters: [P], result: "void" },
  host_use_after_release: { parameters: [P], result: "void" },
} as const satisfies Deno.ForeignLibraryInterface;
const control = {
  softmetal_set: { parameters: [B, B], result: I },
  softmetal_counter: { parameters: [B], result: "i64" },
  softmetal_reset_counters: { parameters: [], result: "void" },
  softmetal_inject_error: { parameters: [U, U, U], result: "void" },
  softmetal_live_objects: { parameters: [B], result: "i64" },
  softmetal_misuses: { parameters: [], result: "i64" },
  softmetal_first_misuse: { parameters: [B, "usize"], result: "usize" },
} as const satisfies Deno.ForeignLibraryInterface;

/** A native object. */
export type Handle = Deno.PointerValue;
/** A kernel argument: a buffer, a buffer from an offset on, bytes, or none. */
export type Argument = Handle | { buffer: Handle; offset: number } | Uint8Array | null;
/** Width, height and depth. */
export type Size3 = [number, number, number];

const here = (name: string) => fromFileUrl(new URL(name, import.meta.url));
/** The host library's symbols. */
export const host: Deno.DynamicLibrary<typeof symbols>["symbols"] =
  Deno.dlopen(await buildHost("host", [here("host.cpp")]), symbols).symbols;
const soft = Deno.dlopen((await softMetal()).library, control).symbols;

/** A C string. */
export function z(text: string): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(text + "\0");
}

function text(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
}

/** The C interface of softmetal.h. */
export const softmetal = {
  set(name: string, value: string | number): void {
    if (soft.softmetal_set(z(name), z(String(value))) !== 0) {
      throw new Error(`softmetal_set ${name}=${value}`);
    }
  },
  counter: (name: string): number => Number(soft.softmetal_counter(z(name))),
  reset: (): void => soft.softmetal_reset_counters(),
  injectError: (nth: number, code: number, count = 1): void => soft.softmetal_inject_error(nth, code, count),
  live: (name: string): number => Number(soft.softmetal_live_objects(z(name))),
  misuses: (): number => Number(soft.softmetal_misuses()),
  firstMisuse(): string {
    const b = new Uint8Array(1024);
    soft.softmetal_first_misuse(b, BigInt(b.length));
    return text(b);
  },
};

/** A kernel source, or a compile, pipeline or run that fails with the given text. */
export class HostError extends Error {}

const cap = 4096;

/** One library of kernels with a queue. */
export class Gpu implements Disposable {
  /** The host's object, for calls that this class does not wrap. */
  readonly handle: Handle;
  #owned: Handle[] = [];

  /** Compiles `source`. Throws HostError with the compiler's report. */
  constructor(source: string, options: { fastMath?: boolean; version?: number } = {}) {
    const e = new Uint8Array(cap);
    this.handle = host.host_open(z(source), options.fastMath ? 1 : 0, options.version ?? 0, e, BigInt(cap));
    if (this.handle === null) throw new HostError(text(e));
  }

  /** A pipeline; `constant` sets one function constant, a bool or a uint. */
  pipeline(name: string, constant?: { index: number; value: boolean | number }): Handle {
    const e = new Uint8Array(cap);
    const value = constant === undefined ? 0 : Number(constant.value);
    const wide = typeof constant?.value === "number" ? 1 : 0;
    const p = host.host_pipeline(this.handle, z(name), constant?.index ?? -1, value, wide, e, BigInt(cap));
    if (p === null) throw new HostError(text(e));
    this.#owned.push(p);
    return p;
  }

  /** A shared buffer with a copy of `data`, or of so many bytes; private storage on request. */
  buffer(data: ArrayBufferView<ArrayBuffer> | number, isPrivate = false): Handle {
    const b = typeof data === "number"
      ? host.host_buffer(this.handle, null, BigInt(data), isPrivate ? 1 : 0)
      : host.host_buffer(
        this.handle,
        new Uint8Array(data.buffer, data.byteOffset, data.byteLength),
        BigInt(data.byteLength),
        0,
      );
    if (b !== null) this.#owned.push(b);
    return b;
  }

  /** Starts a command buffer with a compute encoder. */
  begin(concurrent = false): void {
    host.host_begin(this.handle);
    host.host_compute(this.handle, concurrent ? 1 : 0);
  }

  /** Pages of memory that outlive the library. */
  pages(bytes: number): Handle {
    return host.host_pages(BigInt(bytes));
  }

  /** A buffer over pages, without a copy. */
  noCopy(pages: Handle, bytes: number): Handle {
    const b = host.host_no_copy(this.handle, pages, BigInt(bytes));
    if (b !== null) this.#owned.push(b);
    return b;
  }

  /** A command buffer of blits. */
  blit(f: () => void): void {
    host.host_begin(this.handle);
    host.host_blit(this.handle);
    f();
    host.host_end_blit(this.handle);
    this.commitAndWait();
  }

  /** Encodes one dispatch. */
  dispatch(pipeline: Handle, args: Argument[], groups: Size3, threads: Size3, threadgroupBytes = 0): void {
    this.bind(pipeline, args);
    if (threadgroupBytes) host.host_threadgroup(this.handle, BigInt(threadgroupBytes), 0);
    host.host_groups(this.handle, ...groups, ...threads);
  }

  /** Sets pipeline and arguments. */
  bind(pipeline: Handle, args: Argument[]): void {
    host.host_use(this.handle, pipeline);
    args.forEach((a, i) => {
      if (a instanceof Uint8Array) {
        host.host_bytes(this.handle, a as Uint8Array<ArrayBuffer>, BigInt(a.length), i);
      } else if (a !== null && "buffer" in a) host.host_set(this.handle, a.buffer, BigInt(a.offset), i);
      else if (a !== null) host.host_set(this.handle, a, 0n, i);
    });
  }

  /** A barrier for all buffers, or for one. */
  barrier(buffer: Handle = null): void {
    host.host_barrier(this.handle, buffer);
  }

  /** The pipeline's limit of threads a threadgroup. */
  maxThreads(pipeline: Handle): number {
    return host.host_max_threads(pipeline);
  }

  /** Lanes of a simdgroup. */
  executionWidth(pipeline: Handle): number {
    return host.host_execution_width(pipeline);
  }

  /** Ends the encoder, commits and waits. Throws HostError with the command buffer's error. */
  finish(): void {
    host.host_end(this.handle);
    this.commitAndWait();
  }

  /** Commits the command buffer and waits. */
  commitAndWait(): void {
    host.host_commit(this.handle);
    this.wait();
  }

  /** Waits for the command buffer; GPU seconds. */
  wait(): number {
    const e = new Uint8Array(cap), seconds = new Float64Array(1);
    if (!host.host_wait(this.handle, seconds, e, BigInt(cap))) throw new HostError(text(e));
    return seconds[0];
  }

  /** The same, on a thread of Deno's. */
  async waitNonblocking(): Promise<void> {
    const e = new Uint8Array(cap), seconds = new Float64Array(1);
    if (!await host.wait_nonblocking(this.handle, seconds, e, BigInt(cap))) throw new HostError(text(e));
  }

  /** One dispatch in a command buffer of its own. */
  run(pipeline: Handle, args: Argument[], groups: Size3, threads: Size3, threadgroupBytes = 0): void {
    this.begin();
    this.dispatch(pipeline, args, groups, threads, threadgroupBytes);
    this.finish();
  }

  /** A copy of a buffer's contents. */
  read(buffer: Handle): ArrayBuffer {
    const p = host.host_contents(buffer);
    if (p === null) throw new HostError("no contents");
    return new Deno.UnsafePointerView(p).getArrayBuffer(Number(host.host_length(buffer))).slice(0);
  }

  /** The error of the command buffer in hand: its code and text. */
  error(): { code: number; text: string } {
    const e = new Uint8Array(cap);
    return { code: host.host_error(this.handle, e, BigInt(cap)), text: text(e) };
  }

  /** Stores or loads a binary archive; the error's text, or null. */
  archive(path: string, name: string, store: boolean): string | null {
    const e = new Uint8Array(cap);
    return host.host_archive(this.handle, z(path), z(name), store ? 1 : 0, e, BigInt(cap)) ? null : text(e);
  }

  /** Releases everything that this object made. */
  [Symbol.dispose](): void {
    for (const o of this.#owned) host.host_release(o);
    host.host_close(this.handle);
  }
}

/** What a string-returning function of the host wrote. */
export function constantString(): string {
  const b = new Uint8Array(64);
  host.host_constant_string(b, 64n);
  return text(b);
}

/** Little-endian 32-bit values as bytes; a number with a fraction, or one marked so, is a float. */
export function words(...values: (number | { float: number })[]): Uint8Array {
  const v = new DataView(new ArrayBuffer(4 * values.length));
  values.forEach((x, i) =>
    typeof x === "number" ? v.setUint32(4 * i, x, true) : v.setFloat32(4 * i, x.float, true)
  );
  return new Uint8Array(v.buffer);
}

/** Runs `f` with options set; afterwards each has the value that `defaults` gives it. */
export function withOptions<T>(options: Record<string, string | number>, f: () => T): T {
  const defaults: Record<string, string | number> = {
    detect: 0,
    order: "forward",
    seed: 1,
    max_threads: 1024,
    strict: 1,
    os: 15,
    page_align: 0,
    pool_strict: 0,
    max_buffer: 8 * 2 ** 30,
  };
  for (const [k, v] of Object.entries(options)) softmetal.set(k, v);
  try {
    return f();
  } finally {
    for (const k of Object.keys(options)) softmetal.set(k, defaults[k]);
  }
}

/** The text of the first misuse that `f` commits; "" when it commits none. */
export function misuseOf(f: () => void): string {
  return withOptions({ strict: 0 }, () => {
    softmetal.reset();
    f();
    return softmetal.misuses() > 0 ? softmetal.firstMisuse() : "";
  });
}
