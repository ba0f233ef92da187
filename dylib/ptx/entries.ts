/** Entry points of NVPTX kernels, and what the host must know of them. */
import type { KernelParam, Unit } from "./parse.ts";
import { callee, KEYWORDS, rewritten } from "./rewrite.ts";

/** The functions of shaders/common.h by which a kernel waits, and lets the next one start. */
const WAIT = "wait_for_earlier_dispatches";
const LET_START = "let_next_dispatch_start";

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

/** Functions that call `called`, themselves or by functions that they call. */
function callersOf(called: string, unit: Unit): Set<string> {
  const callers = new Set([called]);
  const calls = ({ open, close }: Unit["functions"][number]) =>
    unit.tokens.slice(open, close).some(({ text }) => callers.has(text));
  for (let before = 0; callers.size > before;) {
    before = callers.size;
    for (const f of unit.functions) if (calls(f)) callers.add(f.name);
  }
  return callers;
}

/** The C++ text of `unit` for NVPTX. `constants` gives values to function constants. */
export function ptxText(unit: Unit, constants: Record<number, string> = {}): string {
  // All functions are inlined, whatever their size, and are seen nowhere else: a call would pass arrays and argument
  // structs through memory, and a function that can be called from elsewhere would stay in the module.
  for (const { head: [first], isKernel } of unit.functions) {
    const text = first.out ?? KEYWORDS[first.text] ?? first.text;
    first.out = `__attribute__((always_inline)) ${isKernel ? "static " : ""}${text}`;
  }
  const out = rewritten(unit, "SM_PTX", constants);
  out.push(`#include "entry_ptx.h"\n`);
  // Kernels may wait themselves, once they have asked for what no earlier dispatch writes, and let the next start later.
  const waiting = callersOf(WAIT, unit), letting = callersOf(LET_START, unit);
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
    out.push(
      `extern "C" __attribute__((nvptx_kernel)) void ${ptxName(k.host)}(${formal.join(", ")}) ` +
        `{ ${letting.has(k.fn) ? "" : `${LET_START}(); `}${waiting.has(k.fn) ? "" : `${WAIT}(); `}` +
        `${callee(k)}(${actual.join(", ")}); }\n`,
    );
  }
  return out.join("");
}
