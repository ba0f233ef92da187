/** A device: where buffers live and plans run. */
import { encodePlan, type Plan } from "../src/schedule/plan.ts";
import { Buffer } from "./buffer.ts";
import { cacheFolder } from "./cache_folder.ts";
import { ErrorText, fixedBytes, readText, size, utf8 } from "./call.ts";
import { Handle } from "./handle.ts";
import { type LibraryOptions, type NativeSymbols, openLibrary } from "./library.ts";
import { Pass } from "./pass.ts";
import { requirePermission } from "./permissions.ts";

/** Kinds of device. */
export type DeviceKind = "cpu" | "metal" | "cuda";

/** Options of `Device.open`; those of the CPU device are ignored by no other: a device refuses what it does not know. */
export interface DeviceOptions extends LibraryOptions {
  /** CPU: worker threads; default: all cores */
  threads?: number;
  /** CPU: instruction set; default: `MARKBASE_CPU`, else the best of this CPU */
  level?: string;
  /**
   * CPU: whether fast passes keep copies of the weights of linear ops with sixteen rows interleaved, where those take no more than half
   * of the memory; default true. Without them weights are read where they lie, at two thirds to five sixths of the speed
   */
  interleave?: boolean;
  /** CUDA: which GPU, from 0; default: the first */
  ordinal?: number;
  /** CUDA: run kernels one after another and time each; `Pass.info()` then has the seconds of the last run's ops */
  timeKernels?: boolean;
  /** CUDA: kernels of decode rows start before the one that they follow is over, where GPU and driver can; default true */
  earlyStart?: boolean;
  /**
   * Metal, CUDA: whether decode rows go through matrix units in fast mode where a weight's format allows; default false.
   * What that costs one row and saves several is in bench/RESULTS.md
   */
  matrixUnits?: boolean;
}

/** What a device is. */
export interface DeviceInfo {
  /** as it was opened */ kind: DeviceKind;
  /** of the processor */ name: string;
  /** instruction set or GPU family */ level: string;
  /** that run ops; 0 on a GPU */ threads: number;
  /** of the machine or GPU */ memoryBytes: number;
  /** bytes; tensors in mapped files must be aligned so */ weightAlignment: number;
  /** of one buffer */ maxBufferBytes: number;
  /** host and device share memory */ unifiedMemory: boolean;
  /** metal: pipelines asked for and ready, to be watched while a plan is compiled, and how they were made */
  pipelines?: PipelineInfo;
  /** cuda */ multiprocessors?: number;
  /** cuda: of the second-level cache, in bytes */ l2Bytes?: number;
  /** metal: bytes that the system recommends as the most */ recommendedMaxWorkingSetSize?: number;
  /** metal: version of the system with its build; cuda: of CUDA that the driver supports */ system?: string;
  /** metal: how buffers are stored, and why */ storage?: { created: string; mapped: string; why: string };
  /** metal: whether a residency set keeps the buffers in place */
  residency?: { set: boolean; why?: string; bytes?: number; leftOutBytes?: number };
}

/** Pipelines of a Metal device. */
export interface PipelineInfo {
  /** kernels that plans asked for */ wanted: number;
  /** of these, those that are made */ ready: number;
  /** of the ready ones, those that came from an archive in the cache folder */ fromArchive: number;
  /** kernel sources compiled */ libraries: number;
  /** that plans waited for pipelines */ milliseconds: number;
  /** by kernel family: none, new, loaded, rebuilt (the file was of no use) or failed */
  archives: Record<string, { state: string; failure?: string }>;
}

/** Bytes that a device holds, by kind. */
export interface DeviceMemory {
  /** of mapped files */ mapped: number;
  /** of buffers made by `createBuffer` */ buffers: number;
  /** of weights in another layout */ repacked: number;
  /** of mapped files, bytes that those are read instead of */ replaced: number;
  /** of passes, beside the plan's arena */ scratch: number;
  /** largest sum of the last three so far */ peak: number;
  /** not yet released, passes' own included */ liveBuffers: number;
  /** not yet released */ livePasses: number;
}

/**
 * Opened by `Device.open`. `using` releases it at the end of the scope; `close()` does so at once and throws `Disposed` when called
 * again. Buffers and passes keep the native device alive, so the order of disposal does not matter.
 */
export class Device implements Disposable, AsyncDisposable {
  readonly #native: NativeSymbols;
  readonly #handle: Handle;
  /** as it was opened */
  readonly kind: DeviceKind;
  /** the native library: path and SHA-256 */
  readonly library: { readonly path: string; readonly sha256: string };

  private constructor(
    native: NativeSymbols,
    pointer: bigint,
    kind: DeviceKind,
    library: { path: string; sha256: string },
    readonly /** as it was opened */ matrixUnits: boolean,
  ) {
    this.#native = native;
    this.#handle = new Handle("A device", this, pointer, native.mb_device_release);
    this.kind = kind;
    this.library = library;
  }

  /**
   * Opens a device, and the native library before it where that has not happened yet. Rejects with `LibraryError`,
   * `MissingPermission` or a `DeviceError` ("no_device" where this machine has none).
   */
  static async open(kind: DeviceKind, options: DeviceOptions = {}): Promise<Device> {
    const { threads, level, interleave, ordinal, timeKernels, earlyStart, matrixUnits, ...libraryOptions } =
      options;
    const library = await openLibrary(libraryOptions);
    const matrix_units = matrixUnits === undefined ? undefined : Number(matrixUnits);
    const settings = kind === "cpu"
      ? {
        threads,
        matrix_units,
        level, // without one the library reads MARKBASE_CPU, and names it where it is wrong
        interleave: interleave === false ? 0 : undefined,
      }
      : kind === "metal"
      ? { threads, level, matrix_units, cache: await kernelCache(options.cache) }
      : {
        threads,
        level,
        ordinal,
        timed: timeKernels ? 1 : undefined,
        early_start: earlyStart === false ? 0 : undefined,
        matrix_units,
        ptx: await (await ptxBuild()).ptxFolder(options),
      };
    const name = utf8(kind, "The device kind");
    const json = utf8(JSON.stringify(settings), "The device options");
    const out = new BigUint64Array(1);
    const error = new ErrorText();
    const status = await library.symbols.mb_device_open_async(
      name,
      BigInt(name.length),
      json,
      BigInt(json.length),
      out,
      error.bytes,
      error.capacity,
    );
    error.unwrap(status);
    const file = { path: library.path, sha256: library.sha256 };
    const device = new Device(library.symbols, out[0], kind, file, matrixUnits ?? false);
    if (kind !== "cuda") return device;
    try {
      const { buildPtx } = await ptxBuild();
      await buildPtx(device.info().level, options); // now that there is a GPU to make it for
      return device;
    } catch (error) {
      device.close();
      throw error;
    }
  }

  /** What the device is. */
  info(): DeviceInfo {
    const pointer = this.#handle.pointer;
    return JSON.parse(readText((...room) => this.#native.mb_device_info(pointer, ...room)));
  }

  /** Bytes that the device holds now. */
  memory(): DeviceMemory {
    const values = new BigUint64Array(8);
    const error = new ErrorText();
    error.unwrap(this.#native.mb_device_memory(this.#handle.pointer, values, error.bytes, error.capacity));
    const [mapped, buffers, repacked, scratch, peak, liveBuffers, livePasses, replaced] = Array.from(
      values,
      Number,
    );
    return { mapped, buffers, repacked, replaced, scratch, peak, liveBuffers, livePasses };
  }

  /** A zero-filled buffer of `bytes` bytes (at least 1). Throws `DeviceError` ("out_of_memory") where there is no room. */
  createBuffer(bytes: number): Buffer {
    const out = new BigUint64Array(1);
    const error = new ErrorText();
    error.unwrap(
      this.#native.mb_buffer_create(
        this.#handle.pointer,
        size(bytes, "The size of a buffer"),
        out,
        error.bytes,
        error.capacity,
      ),
    );
    return new Buffer(this.#native, out[0], true);
  }

  /** Maps bytes [offset, offset + bytes) of a file, read-only, without reading them. Rejects with `DeviceError` ("io"). */
  async mapFile(path: string, offset: number, bytes: number): Promise<Buffer> {
    await requirePermission({ name: "read", path }, "to map the weights");
    const name = utf8(path, "The path");
    const at = size(offset, "The offset");
    const length = size(bytes, "The length");
    const out = new BigUint64Array(1);
    const error = new ErrorText();
    const status = await this.#handle.use(
      [this, name, out, error],
      (pointer) =>
        this.#native.mb_buffer_map_async(
          pointer,
          name,
          BigInt(name.length),
          at,
          length,
          out,
          error.bytes,
          error.capacity,
        ),
    );
    error.unwrap(status);
    return new Buffer(this.#native, out[0], false);
  }

  /**
   * Checks a plan, binds buffer i to its buffer record i and readies it to run. Rejects with `DeviceError`
   * ("invalid_plan", "unsupported", "out_of_memory").
   */
  async compile(plan: Plan | Uint8Array, buffers: readonly Buffer[]): Promise<Pass> {
    const bytes = plan instanceof Uint8Array ? fixedBytes(plan, "The plan") : encodePlan(plan);
    using held = new DisposableStack(); // buffers that are closed meanwhile, too
    const pointers = new BigUint64Array(buffers.map((buffer) => held.use(buffer.hold()).pointer));
    const out = new BigUint64Array(1);
    const error = new ErrorText();
    const status = await this.#handle.use(
      [this, bytes, pointers, buffers, out, error],
      (pointer) =>
        this.#native.mb_pass_compile_async(
          pointer,
          bytes,
          BigInt(bytes.byteLength),
          pointers,
          BigInt(pointers.length),
          out,
          error.bytes,
          error.capacity,
        ),
    );
    error.unwrap(status);
    return new Pass(this.#native, out[0]);
  }

  /** Releases the device. Throws `Disposed` when it already was. */
  close(): void {
    this.#handle.close();
  }

  /** Releases the device, after the calls under way; harmless when repeated. */
  [Symbol.dispose](): void {
    this.#handle.dispose();
  }

  /** As `Symbol.dispose`, and waits for the release. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#handle.disposeAsync();
  }
}

/** Where compiled kernels are kept between processes; none where that folder cannot be made or written: it only saves time. */
async function kernelCache(cache?: string): Promise<string | undefined> {
  try {
    const folder = `${await cacheFolder(cache)}/metal`;
    const { state } = await Deno.permissions.query({ name: "write", path: folder });
    if (state !== "granted") return undefined;
    await Deno.mkdir(folder, { recursive: true });
    return folder;
  } catch {
    return undefined;
  }
}

/** What makes kernels for NVIDIA GPUs, loaded where there is one. */
async function ptxBuild(): Promise<typeof import("../dylib/ptx/build.ts")> {
  return await import("../dylib/ptx/build.ts");
}
