/** From Metal source to a checked file or a shared object for the software GPU. PTX is the product's own (`dylib/ptx`). */
import {
  clangErrors,
  compilePtx as productPtx,
  EXCESS,
  MslError,
  preprocess,
  type PtxModule,
  type PtxOptions,
  read,
  refuse,
  type SourceOptions,
} from "../../../dylib/ptx/compile.ts";
import type { Violation } from "../../../dylib/ptx/lexer.ts";
import { lint } from "../../../dylib/ptx/lint.ts";
import { commonFlags, runClang, SHIM, tools } from "./toolchain.ts";
import { emit } from "./emit.ts";

export { MslError, type PtxModule, type PtxOptions, type SourceOptions };

/** Options of `compileCpu`. */
export interface CpuOptions extends SourceOptions {
  /** `detect` instruments each memory access. */
  mode: "fast" | "detect";
  /** Metal's math modes. */
  math: "safe" | "relaxed" | "fast";
  /** The CPU for which code is made, e.g. `x86-64-v3`. */
  march: string;
  /** Path of the runtime that the kernels call. */
  runtime: string;
}

const CHECK = [
  "-std=c++14",
  "-Werror=c++17-extensions",
  "-Werror=c++20-extensions",
  "-Werror=vla-cxx-extension",
  "-Werror=uninitialized",
  "-Werror=sometimes-uninitialized",
  "-Werror=array-bounds",
  "-Werror=shift-count-overflow",
  "-Werror=return-type",
  "-Wno-unused-value",
  "-fsyntax-only",
];

async function typeCheck(text: string, options: SourceOptions): Promise<void> {
  const name = options.name ?? "source.metal";
  const unit = read(text, name);
  lint(unit);
  refuse(unit);
  const version = `-D__METAL_VERSION__=${options.version ?? 310}`;
  const args = [...commonFlags(), ...CHECK, version, "-Xclang", "-ast-dump", "-"];
  const r = await runClang(args, emit(unit, "check"));
  if (!r.ok) throw new MslError(clangErrors(r.stderr, name, SHIM));
  // An explicit cast between address spaces is legal C++; only the syntax tree shows it.
  const cast = /AddressSpaceConversion/.exec(r.stdout);
  if (!cast) return;
  const violations = addressSpaceCasts(r.stdout, name);
  throw new MslError(violations);
}

/** Casts between address spaces in a dump of the syntax tree, with the line that was last named before each. */
function addressSpaceCasts(dump: string, name: string): Violation[] {
  const found = new Map<number, Violation>();
  let file = name, line = 0;
  for (const row of dump.split("\n")) {
    const at = /<(?:(\S+?):)?(?:line:)?(\d+):\d+/.exec(row);
    if (at) {
      if (at[1] && at[1] !== "line" && at[1] !== "col") file = at[1];
      if (at[1] !== "col") line = Number(at[2]);
    }
    if (row.includes("AddressSpaceConversion")) {
      found.set(line, { file, line, rule: "address space", message: "cast between address spaces" });
    }
  }
  return [...found.values()];
}

/** Checks `source` against the rules of Metal. Throws MslError with every violation. */
export async function checkMsl(source: string, options: SourceOptions = {}): Promise<void> {
  await typeCheck(await preprocess(source, options, await tools()), options);
}

/** The kernels that `source` declares (host names), without checking it. */
export async function kernelNames(source: string, options: SourceOptions = {}): Promise<string[]> {
  return read(await preprocess(source, options, await tools()), options.name ?? "source.metal").kernels.map((
    k,
  ) => k.host);
}

/** Compiles `source` into the shared object `out` for the software GPU. Throws MslError. */
export async function compileCpu(source: string, out: string, options: CpuOptions): Promise<void> {
  const name = options.name ?? "source.metal";
  const text = await preprocess(source, options, await tools());
  const unit = read(text, name);
  const checked = typeCheck(text, options);
  const built = (async () => {
    lint(unit); // also rewrites threadgroup variables
    if (unit.violations.length > 0) return;
    const args = [
      ...commonFlags(),
      "-std=c++17",
      "-fPIC",
      "-shared",
      "-fno-exceptions",
      "-fno-rtti",
      "-fvisibility=hidden",
      `-march=${options.march}`,
      `-D__METAL_VERSION__=${options.version ?? 310}`,
      ...MODES[options.mode],
      ...MATH[options.math],
      ...EXCESS,
      "-",
      "-x",
      "none",
      options.runtime,
      "-lm",
      "-o",
      out,
    ];
    const r = await runClang(args, emit(unit, "cpu"));
    if (!r.ok) throw new MslError(clangErrors(r.stderr, name, SHIM));
  })();
  const [check, build] = await Promise.allSettled([checked, built]);
  if (check.status === "rejected") throw check.reason;
  if (build.status === "rejected") throw build.reason;
}

const TRAPS = "array-bounds,alignment,shift,integer-divide-by-zero,float-cast-overflow,bool";
const MODES = {
  fast: ["-O2", "-gline-tables-only"],
  detect: [
    "-O1",
    "-gline-tables-only",
    "-DSM_DETECT=1",
    `-fsanitize=thread,${TRAPS}`,
    `-fsanitize-trap=${TRAPS}`,
    "-ftrivial-auto-var-init=pattern",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-fno-vectorize",
    "-fno-slp-vectorize",
  ],
};
const MATH = {
  safe: ["-ffp-contract=on"],
  relaxed: ["-ffast-math", "-fhonor-nans", "-fhonor-infinities"],
  fast: ["-ffast-math", "-Wno-nan-infinity-disabled"],
};

/** Compiles `source` to PTX. Throws MslError. */
export async function compilePtx(source: string, options: PtxOptions = {}): Promise<PtxModule> {
  return await productPtx(source, options, await tools());
}
