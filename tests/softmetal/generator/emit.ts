/** Turns a parsed Metal file into C++ for clang, line for line, and appends the entry points. */
import { matching, matchingAngle, type Token } from "./lexer.ts";
import type { Kernel, KernelParam, Unit } from "./parse.ts";

/** `cpu` runs in the software GPU, `check` is only type-checked with address spaces, `ptx` is NVPTX. */
export type Target = "cpu" | "check" | "ptx";

const KEYWORDS: Record<string, string> = {
  kernel: "",
  device: "SM_DEVICE",
  constant: "SM_CONSTANT",
  threadgroup: "SM_THREADGROUP",
  thread: "SM_THREAD",
};

/** Spelled out where messages and the syntax tree are read: a macro would hide the source line. */
const CHECKED: Record<string, string> = {
  kernel: "",
  device: "__attribute__((address_space(1)))",
  constant: "const __attribute__((address_space(2)))",
  threadgroup: "__attribute__((address_space(3)))",
  thread: "",
};

const VECTOR = /^(bool|char|uchar|short|ushort|int|uint|long|ulong|half|float|bfloat)[234]$/;

/** The C++ text of `unit`. `constants` gives values to function constants (PTX only). */
export function emit(unit: Unit, target: Target, constants: Record<number, string> = {}): string {
  rewrite(unit, target, constants);
  const out = [`#define SM_${target.toUpperCase()} 1\n#include "metal_stdlib"\n#line 1 "source"\n`];
  const keywords = target === "check" ? CHECKED : KEYWORDS;
  for (const p of unit.pieces) {
    if (typeof p === "string") out.push(p);
    else out.push(p.out ?? keywords[p.text] ?? p.text, p.after ?? "");
  }
  out.push(`\n#line 1 "entries"\n`);
  if (target === "check") unit.kernels.forEach((k, n) => out.push(`auto* sm_check_${n} = &${callee(k)};\n`));
  else if (target === "cpu") cpuEntries(unit, out);
  else ptxEntries(unit, out);
  return out.join("");
}

/** The name by which a PTX module exports a kernel. */
export function ptxName(host: string): string {
  return "k_" + host.replaceAll(/[^A-Za-z0-9_]/g, "_");
}

/** One argument of a PTX kernel, in the order in which the driver's parameter array lists them. */
export interface PtxArgument {
  name: string;
  /** `buffer`: a device pointer. `bytes`: the value itself. `threadgroup`: a byte offset into dynamic shared memory. */
  kind: "buffer" | "bytes" | "threadgroup";
  /** The Metal argument index. */
  index: number;
}

/** What the host must know of a PTX kernel. */
export interface PtxKernel {
  host: string;
  entry: string;
  maxThreads: number;
  arguments: PtxArgument[];
}

/** The kernels of `unit`, for the host that launches them. `constant T&` is passed by value, all else by pointer. */
export function ptxKernels(unit: Unit): PtxKernel[] {
  return unit.kernels.map((k) => ({
    host: k.host,
    entry: ptxName(k.host),
    maxThreads: k.maxThreads,
    arguments: k.params.filter((p) => p.kind !== "builtin").map((p) => ({
      name: p.name,
      kind: p.kind === "threadgroup" ? "threadgroup" : byValue(p) ? "bytes" : "buffer",
      index: p.index,
    })),
  }));
}

function byValue(p: KernelParam): boolean {
  return p.kind === "buffer" && p.reference && p.space === "constant";
}

/** Constructs that C++ spells otherwise: vector constructors, literals, function constants. */
function rewrite(unit: Unit, target: Target, constants: Record<number, string>): void {
  const ts = unit.tokens;
  for (let i = 0; i < ts.length; i++) {
    const t = ts[i];
    if (t.out !== undefined) continue;
    const number = /^(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)([fFhH]|bf|BF)?$/.exec(t.text);
    if (number && (number[2] || /[.eE]/.test(number[1]))) t.out = literal(number[1], number[2]);
    if (VECTOR.test(t.text) && (ts[i + 1]?.text === "(" || ts[i + 1]?.text === "{")) {
      if (ts[i + 1].text === "(") t.out = `metal::sm_make<${t.text}>`;
    }
    if (t.text === "vec" && ts[i + 1]?.text === "<") {
      const close = matchingAngle(ts, i + 1);
      if (ts[close + 1]?.text === "(") {
        t.out = "metal::sm_make<metal::vec";
        ts[close].after = ">";
      }
    }
    if (t.text === "is_function_constant_defined") isDefined(unit, ts, i, target, constants);
  }
  for (const c of unit.functionConstants) {
    for (const t of c.tokens) t.out = "";
    const value = constants[c.index];
    c.tokens[0].out = target === "ptx" && value !== undefined
      ? `constexpr ${c.type} ${c.name} = (${c.type})(${value})`
      : `SM_FUNCTION_CONSTANT(${c.type}, ${c.name}, ${c.index})`;
  }
}

function literal(digits: string, suffix: string | undefined): string {
  const value = /[.eE]/.test(digits) ? digits : digits + ".";
  if (suffix === "h" || suffix === "H") return `((half)${value}f)`;
  if (suffix === "bf" || suffix === "BF") return `((bfloat)${value}f)`;
  return value + "f";
}

function isDefined(
  unit: Unit,
  ts: Token[],
  i: number,
  target: Target,
  constants: Record<number, string>,
): void {
  const close = matching(ts, i + 1, "(", ")");
  const c = unit.functionConstants.find((c) => c.name === ts[i + 2].text);
  for (let q = i; q <= close; q++) ts[q].out = "";
  if (!c) ts[i].out = "is_function_constant_defined";
  else if (target === "cpu") ts[i].out = `sm_defined_${c.index}`;
  else ts[i].out = constants[c.index] === undefined ? "false" : "true";
}

function callee(k: Kernel): string {
  return k.fn + (k.args === null ? "" : `<${k.args}>`);
}

const KIND = { buffer: 0, threadgroup: 1, builtin: 2, unknown: 3 };

function cpuEntries(unit: Unit, out: string[]): void {
  out.push(`#include "entry_cpu.h"\n`);
  unit.kernels.forEach((k, n) => {
    const fn = `&${callee(k)}`;
    const type = `decltype(${fn})`;
    const args = k.params.map((p, a) =>
      `sm_argument<SmParam<${type}, ${a}>::type>(c, ${KIND[p.kind]}, ${p.index})`
    );
    out.push(`extern "C" void sm_entry_${n}(SmContext* c) { ${callee(k)}(${args.join(", ")}); }\n`);
    const params = k.params.map((p, a) => {
      const flags = (p.readOnly ? 1 : 0) | (p.reference ? 2 : 0) | (p.condition === null ? 0 : 4) |
        (p.space === "constant" ? 8 : 0);
      const pointee = `SmPointee<SmParam<${type}, ${a}>::type>`;
      const condition = unit.functionConstants.find((c) => c.name === p.condition)?.index ?? -1;
      return `{${
        KIND[p.kind]
      }, ${p.index}, ${flags}, ${pointee}::size, ${pointee}::align, ${condition}, "${p.name}"}`;
    });
    out.push(
      `static const SmParamInfo sm_params_${n}[] = {${[...params, "{-1, 0, 0, 0, 0, -1, 0}"].join(", ")}};\n`,
    );
  });
  const kernels = unit.kernels.map((k, n) =>
    `{"${k.host}", sm_entry_${n}, sm_params_${n}, ${k.maxThreads}, ${k.constantMask}u}`
  );
  out.push(`SM_EXPORT const SmKernel sm_kernels[] = {${[...kernels, "{0, 0, 0, 0, 0}"].join(",\n ")}};\n`);
  const constants = unit.functionConstants.map((c) =>
    `{"${c.name}", ${c.index}, &sm_constant_${c.index}, sizeof(sm_constant_${c.index}), &sm_defined_${c.index}}`
  );
  out.push(
    `SM_EXPORT const SmConstant sm_constants[] = {${[...constants, "{0, 0, 0, 0, 0}"].join(",\n ")}};\n`,
  );
}

function ptxEntries(unit: Unit, out: string[]): void {
  out.push(`#include "entry_ptx.h"\n`);
  for (const k of unit.kernels) {
    const type = `decltype(&${callee(k)})`;
    const formal: string[] = [];
    const actual = k.params.map((p, a) => {
      const t = `SmParam<${type}, ${a}>::type`;
      if (p.kind === "builtin") return `sm_builtin_value<${t}>(${p.index})`;
      const how = p.kind === "threadgroup" ? "SmOffset" : byValue(p) ? "SmByValue" : "SmByPointer";
      formal.push(`${how}<${t}>::type a${a}`);
      return `${how}<${t}>::get(a${a})`;
    });
    const bounds = k.maxThreads > 0 ? `__attribute__((launch_bounds(${k.maxThreads}))) ` : "";
    out.push(
      `extern "C" ${bounds}__attribute__((nvptx_kernel)) void ${ptxName(k.host)}(${formal.join(", ")}) ` +
        `{ ${callee(k)}(${actual.join(", ")}); }\n`,
    );
  }
}
