/** Turns a parsed Metal file into C++ for clang, line for line. */
import { matching, matchingAngle, type Token } from "./lexer.ts";
import type { Kernel, Unit } from "./parse.ts";

/** How the words that name address spaces are spelled in C++. */
export const KEYWORDS: Record<string, string> = {
  kernel: "",
  device: "SM_DEVICE",
  constant: "SM_CONSTANT",
  threadgroup: "SM_THREADGROUP",
  thread: "SM_THREAD",
};

const VECTOR = /^(bool|char|uchar|short|ushort|int|uint|long|ulong|half|float|bfloat)[234]$/;

/**
 * The C++ text of `unit` for the shim, in pieces, without entry points; `target` is the macro that tells the shim
 * what it is compiled for. `constants` gives values to function constants; without it they are variables of the
 * module that the host sets.
 */
export function rewritten(
  unit: Unit,
  target: string,
  constants: Record<number, string> | undefined,
  keywords: Record<string, string> = KEYWORDS,
): string[] {
  rewrite(unit, constants);
  const out = [`#define ${target} 1\n#include "metal_stdlib"\n#line 1 "source"\n`];
  for (const p of unit.pieces) {
    if (typeof p === "string") out.push(p);
    else out.push(p.out ?? keywords[p.text] ?? p.text, p.after ?? "");
  }
  out.push(`\n#line 1 "entries"\n`);
  return out;
}

/** Constructs that C++ spells otherwise: vector constructors, literals, function constants. */
function rewrite(unit: Unit, constants: Record<number, string> | undefined): void {
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
    if (t.text === "is_function_constant_defined") isDefined(unit, ts, i, constants);
  }
  for (const c of unit.functionConstants) {
    for (const t of c.tokens) t.out = "";
    const value = constants?.[c.index];
    c.tokens[0].out = value !== undefined
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
  constants: Record<number, string> | undefined,
): void {
  const close = matching(ts, i + 1, "(", ")");
  const c = unit.functionConstants.find((c) => c.name === ts[i + 2].text);
  for (let q = i; q <= close; q++) ts[q].out = "";
  if (!c) ts[i].out = "is_function_constant_defined";
  else if (constants === undefined) ts[i].out = `sm_defined_${c.index}`;
  else ts[i].out = constants[c.index] === undefined ? "false" : "true";
}

/** The C++ name of a kernel's function. */
export function callee(k: Kernel): string {
  return k.fn + (k.args === null ? "" : `<${k.args}>`);
}
