/** From Metal source to a checked file, a shared object for the software GPU, or PTX. */
import { emit, type PtxKernel, ptxKernels } from "./emit.ts";
import { lex, MslSyntaxError, type Violation } from "./lexer.ts";
import { lint } from "./lint.ts";
import { parse, type Unit } from "./parse.ts";
import { commonFlags, runClang, shim } from "./toolchain.ts";

/** The source breaks rules of the language; the message lists them, one a line, as `file:line: error: [rule] text`. */
export class MslError extends Error {
  constructor(public readonly violations: Violation[]) {
    super(violations.map((v) => `${v.file}:${v.line}: error: [${v.rule}] ${v.message}`).join("\n"));
  }
}

/** Options common to all targets. */
export interface SourceOptions {
  /** `__METAL_VERSION__`: 300 for Metal 3.0, 310 for 3.1 (which brought bfloat), 320 for 3.2. */
  version?: number;
  /** Folders for `#include "…"`. */
  includes?: string[];
  /** Name of the source in messages. */
  name?: string;
  /** Macros, as `NAME=value`. */
  defines?: string[];
}

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

/** Options of `compilePtx`. */
export interface PtxOptions extends SourceOptions {
  /** Values of function constants by index. One without a value becomes the module's variable `sm_constant_<index>`. */
  constants?: Record<number, string>;
  /** `sm_90` unless given. */
  arch?: string;
  /** PTX version as a feature, `ptx83` unless given. */
  ptx?: string;
}

/** A PTX module and its kernels. */
export interface PtxModule {
  text: string;
  kernels: PtxKernel[];
}

async function preprocess(source: string, options: SourceOptions): Promise<string> {
  const name = options.name ?? "source.metal";
  const args = [
    "-E",
    "-x",
    "c++",
    "-nostdinc",
    "-isystem",
    shim("empty"),
    ...(options.includes ?? []).flatMap((i) => ["-I", i]),
    "-D__METAL__=1",
    `-D__METAL_VERSION__=${options.version ?? 310}`,
    ...(options.defines ?? []).map((d) => "-D" + d),
    "-",
  ];
  const r = await runClang(args, `#line 1 "${name}"\n${source}`);
  if (!r.ok) throw new MslError(clangErrors(r.stderr, name));
  return r.stdout;
}

function read(text: string, name: string): Unit {
  try {
    return parse(lex(text, name));
  } catch (e) {
    if (e instanceof MslSyntaxError) throw new MslError([e.violation]);
    throw e;
  }
}

function refuse(unit: Unit): void {
  if (unit.violations.length === 0) return;
  const lines = new Map(unit.violations.map((v) => [`${v.file}:${v.line}:${v.message}`, v]));
  throw new MslError([...lines.values()]);
}

/** The errors in clang's output; those inside the shim are reported at the place that caused them. */
function clangErrors(stderr: string, name: string): Violation[] {
  const found: Violation[] = [];
  let inShim: string | null = null;
  for (const line of stderr.split("\n")) {
    const m = /^(.*?):(\d+)(?::\d+)?: (fatal error|error|note): (.*)$/.exec(line);
    if (!m) continue;
    const shimFile = m[1].startsWith(shim());
    if (m[3] !== "note" && shimFile) inShim = m[4];
    else if (m[3] !== "note") found.push({ file: m[1], line: Number(m[2]), rule: "clang", message: m[4] });
    else if (inShim !== null && !shimFile) {
      found.push({ file: m[1], line: Number(m[2]), rule: "clang", message: inShim });
      inShim = null;
    }
  }
  if (found.length === 0) {
    found.push({ file: name, line: 1, rule: "clang", message: inShim ?? stderr.slice(0, 2000) });
  }
  return found;
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
  if (!r.ok) throw new MslError(clangErrors(r.stderr, name));
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
  await typeCheck(await preprocess(source, options), options);
}

/** The kernels that `source` declares (host names), without checking it. */
export async function kernelNames(source: string, options: SourceOptions = {}): Promise<string[]> {
  return read(await preprocess(source, options), options.name ?? "source.metal").kernels.map((k) => k.host);
}

/** Compiles `source` into the shared object `out` for the software GPU. Throws MslError. */
export async function compileCpu(source: string, out: string, options: CpuOptions): Promise<void> {
  const name = options.name ?? "source.metal";
  const text = await preprocess(source, options);
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
    if (!r.ok) throw new MslError(clangErrors(r.stderr, name));
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
    "-g",
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
const EXCESS = ["-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-fbfloat16-excess-precision=none"];

/** Compiles `source` to PTX. Throws MslError. */
export async function compilePtx(source: string, options: PtxOptions = {}): Promise<PtxModule> {
  const defines = [...(options.defines ?? []), "MSL_TARGET_PTX=1"];
  const name = options.name ?? "source.metal";
  const unit = read(await preprocess(source, { ...options, defines }), name);
  lint(unit);
  refuse(unit);
  const args = [
    ...commonFlags(),
    "-std=c++17",
    "--target=nvptx64-nvidia-cuda",
    `-march=${options.arch ?? "sm_90"}`,
    "-Xclang",
    "-target-feature",
    "-Xclang",
    "+" + (options.ptx ?? "ptx83"),
    "-O3",
    "-ffp-contract=fast",
    "-fno-exceptions",
    "-fno-rtti",
    `-D__METAL_VERSION__=${options.version ?? 310}`,
    ...EXCESS,
    "-S",
    "-o",
    "-",
    "-",
  ];
  const r = await runClang(args, emit(unit, "ptx", options.constants));
  if (!r.ok) throw new MslError(clangErrors(r.stderr, name));
  return { text: r.stdout, kernels: ptxKernels(unit) };
}
