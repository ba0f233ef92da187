/** Builds fake_libcuda.c and opens the cuda device on it. */
import { compilerCommand } from "../../dylib/compiler.ts";
import { Device, type DeviceOptions } from "../../ffi/device.ts";
import { findPtxClang } from "../../dylib/ptx/clang.ts";
import { LibraryError } from "../../src/errors.ts";
import { withEnvironment } from "../support/environment.ts";

const symbols = {
  fake_reset: { parameters: [], result: "void" },
  fake_count: { parameters: ["buffer"], result: "i64" },
  fake_fail: { parameters: ["buffer", "i32", "i32"], result: "void" },
  fake_nodes: { parameters: ["buffer", "usize"], result: "void" },
  fake_live: { parameters: ["i32"], result: "i64" },
} as const satisfies Deno.ForeignLibraryInterface;

/** A node of a command graph. */
export interface Node {
  /** `event`, or the kernel's entry */ name: string;
  /** grid, block, dynamic bytes and a hash of the arguments */ detail: string;
  /** numbers of the nodes that it follows */ after: number[];
  /** of those, the kernels during which it may start */ early: number[];
}

const text = (value: string) => new TextEncoder().encode(value + "\0");

/** The fake driver's own functions. */
export class FakeDriver {
  static readonly KINDS = {
    allocations: 0,
    streams: 1,
    events: 2,
    modules: 3,
    graphs: 5,
    executables: 7,
    contexts: 8,
  };
  readonly #library: Deno.DynamicLibrary<typeof symbols>;

  private constructor(readonly path: string) {
    this.#library = Deno.dlopen(path, symbols);
  }

  /** Compiles it. */
  static async build(): Promise<FakeDriver> {
    const folder = await Deno.makeTempDir({ prefix: "markbase-fake-" });
    const source = new URL("./fake_libcuda.c", import.meta.url).pathname;
    const args = [
      "-x",
      "c",
      "-std=gnu11",
      "-O1",
      "-shared",
      "-fPIC",
      source,
      "-o",
      `${folder}/libcuda.so`,
      "-pthread",
    ];
    const { success, stderr } = await new Deno.Command(await compilerCommand(), { args }).output();
    if (!success) throw new Error(new TextDecoder().decode(stderr));
    return new FakeDriver(`${folder}/libcuda.so`);
  }

  /**
   * Opens "cuda" on it. The library takes the driver that it finds first for as long as the process lives; processes that other
   * tests start must not find this one.
   */
  async open(options?: DeviceOptions): Promise<Device> {
    return await withEnvironment({ MARKBASE_LIBCUDA: this.path }, () => Device.open("cuda", options));
  }

  /** Forgets calls and planned failures. */
  reset(): void {
    this.#library.symbols.fake_reset();
  }

  /** Calls of a function since the reset. */
  count(name: string): number {
    return Number(this.#library.symbols.fake_count(text(name)));
  }

  /** The next call of a function but `after` gives `result`. */
  fail(name: string, result: number, after = 0): void {
    this.#library.symbols.fake_fail(text(name), after, result);
  }

  /** The graph instantiated last. */
  nodes(): Node[] {
    const bytes = new Uint8Array(1 << 20);
    this.#library.symbols.fake_nodes(bytes, BigInt(bytes.length));
    const lines = new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0))).trim().split("\n");
    return lines.map((line) => {
      const [, name, detail, after] = /^\d+ (\S+) (.*) ?after ?(.*)$/.exec(line)!;
      const edges = after === "" ? [] : after.split(" ");
      const early = edges.flatMap((edge) => edge.startsWith("early:") ? [Number(edge.slice(6))] : []);
      return {
        name,
        detail: detail.trim(),
        after: edges.map((edge) => Number(edge.replace("early:", ""))),
        early,
      };
    });
  }

  /** Objects of a kind that were made and not destroyed. */
  live(kind: keyof typeof FakeDriver.KINDS): number {
    return Number(this.#library.symbols.fake_live(FakeDriver.KINDS[kind]));
  }
}

/** Why PTX cannot be made here; undefined where it can. */
export async function noPtx(): Promise<string | undefined> {
  try {
    await findPtxClang();
    return undefined;
  } catch (error) {
    if (error instanceof LibraryError) return error.message;
    throw error;
  }
}
