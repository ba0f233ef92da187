/** Opens the Metal device over software Metal in this process, and steers and observes that. */
import { Device, type DeviceOptions } from "../../ffi/device.ts";
import { cacheFolder } from "../../ffi/cache_folder.ts";
import { scanSources } from "../../dylib/sources.ts";
import { softMetal } from "../softmetal/build.ts";
import { buildSoftMetalLibrary } from "../softmetal/task.ts";
import { withEnvironment } from "../support/environment.ts";

const SYMBOLS = {
  softmetal_set: { parameters: ["buffer", "buffer"], result: "i32" },
  softmetal_counter: { parameters: ["buffer"], result: "i64" },
  softmetal_reset_counters: { parameters: [], result: "void" },
  softmetal_inject_error: { parameters: ["u32", "u32", "u32"], result: "void" },
  softmetal_live_objects: { parameters: ["buffer"], result: "i64" },
} as const satisfies Deno.ForeignLibraryInterface;

/** Classes whose objects a run or a device makes; all of them must be gone after it. */
export const CLASSES = [
  "MTLBuffer",
  "MTLCommandBuffer",
  "MTLCommandQueue",
  "MTLComputeCommandEncoder",
  "MTLComputePipelineState",
  "MTLComputePipelineDescriptor",
  "MTLLibrary",
  "MTLFunction",
  "MTLCompileOptions",
  "MTLBinaryArchive",
  "MTLBinaryArchiveDescriptor",
  "MTLResidencySet",
  "MTLResidencySetDescriptor",
  "NSError",
  "NSURL",
  "NSArray",
];

const text = (value: string) => new TextEncoder().encode(value + "\0");

/** The software GPU of this process. */
export class SoftwareMetal {
  readonly #symbols: Deno.DynamicLibrary<typeof SYMBOLS>["symbols"];

  private constructor(path: string) {
    this.#symbols = Deno.dlopen(path, SYMBOLS).symbols;
  }

  static async open(): Promise<SoftwareMetal> {
    return new SoftwareMetal((await softMetal()).library);
  }

  /** Sets an option of tests/softmetal/README.md. */
  set(name: string, value: string | number): void {
    if (this.#symbols.softmetal_set(text(name), text(String(value))) !== 0) {
      throw new Error(`software Metal has no option ${name} with the value ${value}`);
    }
  }

  /** Counts since `reset()`. */
  count(name: string): number {
    const value = Number(this.#symbols.softmetal_counter(text(name)));
    if (value < 0) throw new Error(`software Metal has no counter ${name}`);
    return value;
  }

  /** Sets the counters to 0. */
  reset(): void {
    this.#symbols.softmetal_reset_counters();
  }

  /** Makes the `nth` command buffer from now (1: the next) and the `count - 1` after it fail with a MTLCommandBufferError. */
  injectError(nth: number, code: number, count = 1): void {
    this.#symbols.softmetal_inject_error(nth, code, count);
  }

  /** Objects that are alive, by class. */
  live(): Record<string, number> {
    const live = (name: string) => Number(this.#symbols.softmetal_live_objects(text(name)));
    return Object.fromEntries(CLASSES.map((name) => [name, live(name)]));
  }
}

/** Opens "metal" from the library at `path`; other test files of this process keep theirs. */
export async function openMetal(path: string, options: DeviceOptions = {}): Promise<Device> {
  return await withEnvironment({ MARKBASE_DYLIB: path }, () => Device.open("metal", options));
}

let product: Promise<string> | undefined;
let probe: Promise<string> | undefined;

/** The product's library over software Metal, built once for a test file; its path. */
export function productLibrary(): Promise<string> {
  return product ??= buildSoftMetalLibrary().then(({ path }) => path);
}

/** The product's library with the lowering and the kernels of tests/metal/probe, built once for a test file; its path. */
export function probeLibrary(): Promise<string> {
  return probe ??= buildProbe();
}

async function buildProbe(): Promise<string> {
  const dylib = new URL("../../dylib/", import.meta.url);
  const folder = new URL("./probe/", import.meta.url);
  const root = await Deno.makeTempDir({ prefix: "markbase-probe-" });
  try {
    const { files } = await scanSources(dylib);
    const kept = Object.keys(files).filter((file) =>
      !/^(\.\.|cpu|cuda)\//.test(file) && !/^gpu\/(lower|turns|repack\.cpp)/.test(file)
    );
    const copies = kept.map((file) => [new URL(file, dylib), `${root}/dylib/${file}`] as const);
    const own = ["probe.metal", "probe.h", "probe_params.h"].map((file) =>
      [new URL(file, folder), `${root}/shaders/${file}`] as const
    );
    for (
      const [from, to] of [
        ...copies,
        ...own,
        ...["lower.cpp", "repack.cpp"].map((file) =>
          [new URL(file, folder), `${root}/dylib/gpu/${file}`] as const
        ),
      ]
    ) {
      await Deno.mkdir(to.slice(0, to.lastIndexOf("/")), { recursive: true });
      await Deno.copyFile(from, to);
    }
    return (await buildSoftMetalLibrary({ sources: new URL(`file://${root}/dylib/`) })).path;
  } finally {
    await Deno.remove(root, { recursive: true });
  }
}

/** A folder for archives that is empty when a test begins. */
export async function emptyCache(): Promise<string> {
  const folder = `${await cacheFolder()}/test-archives`;
  await Deno.mkdir(folder, { recursive: true });
  return await Deno.makeTempDir({ dir: folder });
}
