/** From Metal source to PTX. Preprocessing, reading and messages are shared with the tests' other targets. */
import { type PtxKernel, ptxKernels, ptxText } from "./entries.ts";
import { lex, MslSyntaxError, type Violation } from "./lexer.ts";
import { lint } from "./lint.ts";
import { parse, type Unit } from "./parse.ts";
import { commonFlags, runClang, type Toolchain } from "./toolchain.ts";

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

/** Source with its headers put in. Throws MslError. */
export async function preprocess(
  source: string,
  options: SourceOptions,
  tools: Toolchain,
): Promise<string> {
  const name = options.name ?? "source.metal";
  const args = [
    "-E",
    "-x",
    "c++",
    "-nostdinc",
    "-isystem",
    tools.shim[0] + "empty",
    ...(options.includes ?? []).flatMap((i) => ["-I", i]),
    "-D__METAL__=1",
    `-D__METAL_VERSION__=${options.version ?? 310}`,
    ...(options.defines ?? []).map((d) => "-D" + d),
    "-",
  ];
  const r = await runClang(tools.clang, args, `#line 1 "${name}"\n${source}`);
  if (!r.ok) throw new MslError(clangErrors(r.stderr, name, tools.shim));
  return r.stdout;
}

/** Parses preprocessed source. Throws MslError where brackets do not match. */
export function read(text: string, name: string): Unit {
  try {
    return parse(lex(text, name));
  } catch (e) {
    if (e instanceof MslSyntaxError) throw new MslError([e.violation]);
    throw e;
  }
}

/** Throws MslError with the violations found so far. */
export function refuse(unit: Unit): void {
  if (unit.violations.length === 0) return;
  const lines = new Map(unit.violations.map((v) => [`${v.file}:${v.line}:${v.message}`, v]));
  throw new MslError([...lines.values()]);
}

/** The errors in clang's output; those inside the shim are reported at the place that caused them. */
export function clangErrors(stderr: string, name: string, shim: readonly string[]): Violation[] {
  const found: Violation[] = [];
  let inShim: string | null = null;
  for (const line of stderr.split("\n")) {
    const m = /^(.*?):(\d+)(?::\d+)?: (fatal error|error|note): (.*)$/.exec(line);
    if (!m) continue;
    const shimFile = shim.some((folder) => m[1].startsWith(folder));
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

/** Half-precision arithmetic as the GPU does it, one rounding an operation. */
export const EXCESS = [
  "-Xclang",
  "-ffloat16-excess-precision=none",
  "-Xclang",
  "-fbfloat16-excess-precision=none",
];

/** Compiles `source` to PTX. Throws MslError. */
export async function compilePtx(
  source: string,
  options: PtxOptions,
  tools: Toolchain,
): Promise<PtxModule> {
  const defines = [...(options.defines ?? []), "MSL_TARGET_PTX=1"];
  const name = options.name ?? "source.metal";
  const unit = read(await preprocess(source, { ...options, defines }, tools), name);
  lint(unit);
  refuse(unit);
  const args = [
    ...commonFlags(tools),
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
    ...(Number((options.arch ?? "sm_90").slice(3)) >= 90 ? ["-DSM_EARLY_START"] : []),
    ...EXCESS,
    "-S",
    "-o",
    "-",
    "-",
  ];
  const r = await runClang(tools.clang, args, ptxText(unit, options.constants));
  if (!r.ok) throw new MslError(clangErrors(r.stderr, name, tools.shim));
  return { text: r.stdout, kernels: ptxKernels(unit) };
}
