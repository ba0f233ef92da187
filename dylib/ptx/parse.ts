/** Finds the declarations of a Metal file: kernels, explicit instantiations, function constants, functions, structs. */
import {
  isWord,
  type Lexed,
  matching,
  matchingAngle,
  MslSyntaxError,
  place,
  splitCommas,
  textOf,
  type Token,
  type Violation,
} from "./lexer.ts";

/** The builtins of kernels, numbered as the runtime's `Context::values` is. */
export const BUILTINS: readonly string[] = [
  "thread_position_in_grid",
  "thread_position_in_threadgroup",
  "thread_index_in_threadgroup",
  "threadgroup_position_in_grid",
  "threads_per_threadgroup",
  "threads_per_grid",
  "threadgroups_per_grid",
  "thread_index_in_simdgroup",
  "simdgroup_index_in_threadgroup",
  "simdgroups_per_threadgroup",
  "threads_per_simdgroup",
];

const ALIASES: Record<string, string> = {
  dispatch_threads_per_threadgroup: "threads_per_threadgroup",
  dispatch_simdgroups_per_threadgroup: "simdgroups_per_threadgroup",
  thread_execution_width: "threads_per_simdgroup",
};

/** The address spaces. */
export const SPACES: ReadonlySet<string> = new Set(["device", "constant", "threadgroup", "thread"]);

/** One parameter of a kernel. `index` is the buffer or threadgroup slot, or the builtin's number. */
export interface KernelParam {
  name: string;
  type: string;
  kind: "buffer" | "threadgroup" | "builtin" | "unknown";
  index: number;
  pointer: boolean;
  reference: boolean;
  readOnly: boolean;
  space: string | null;
  /** Name of the function constant on which the argument depends. */
  condition: string | null;
  at: Token;
}

/** One entry of the library: a kernel, or one instantiation of a kernel template. */
export interface Kernel {
  host: string;
  fn: string;
  /** Template arguments as text, or null. */
  args: string | null;
  params: KernelParam[];
  /** From max_total_threads_per_threadgroup, else 0. */
  maxThreads: number;
  /** Bit i is set when function constant i is used. */
  constantMask: number;
  at: Token;
}

/** `constant T name [[function_constant(index)]];` */
export interface FunctionConstant {
  name: string;
  type: string;
  index: number;
  /** The tokens of the declaration, semicolon excluded. */
  tokens: Token[];
}

/** A function with its body: token indices of the braces. */
export interface FunctionBody {
  name: string;
  head: Token[];
  params: Token[][];
  open: number;
  close: number;
  isKernel: boolean;
}

/** A program-scope variable. */
export interface GlobalVariable {
  tokens: Token[];
}

/** A struct with its body. */
export interface StructBody {
  name: string;
  open: number;
  close: number;
}

/** Everything the parser found. */
export interface Unit extends Lexed {
  kernels: Kernel[];
  functionConstants: FunctionConstant[];
  functions: FunctionBody[];
  globals: GlobalVariable[];
  structs: StructBody[];
  violations: Violation[];
}

/** Parses lexed source. Throws MslSyntaxError where brackets do not match. */
export function parse(lexed: Lexed): Unit {
  const unit: Unit = {
    ...lexed,
    kernels: [],
    functionConstants: [],
    functions: [],
    globals: [],
    structs: [],
    violations: [],
  };
  const prototypes = new Map<string, { params: KernelParam[]; maxThreads: number }>();
  let i = 0;
  while (i < unit.tokens.length) i = declaration(unit, i, prototypes);
  blankAttributes(unit);
  for (const k of unit.kernels) {
    const p = prototypes.get(k.fn);
    if (p) Object.assign(k, p);
    else report(unit, k.at, "kernel", `no kernel template '${k.fn}'`);
  }
  markConstants(unit);
  return unit;
}

/** Adds a violation. */
export function report(unit: Unit, at: Token, rule: string, message: string): void {
  unit.violations.push({ ...place(at), rule, message });
}

type Prototypes = Map<string, { params: KernelParam[]; maxThreads: number }>;

/** Reads the declaration at `i`; returns the index after it. */
function declaration(unit: Unit, i: number, prototypes: Prototypes): number {
  const ts = unit.tokens;
  const start = i;
  const s = ts[i].text;
  if (s === ";" || s === "}") return i + 1;
  if (s === "namespace") {
    while (ts[i].text !== "{" && ts[i].text !== ";") i++;
    return i + 1;
  }
  if (["using", "typedef", "static_assert", "enum"].includes(s)) return endOfStatement(ts, i) + 1;
  let templated = false;
  if (s === "template") {
    if (ts[i + 1]?.text !== "<") return instantiation(unit, i);
    i = matchingAngle(ts, i + 1) + 1;
    templated = true;
    while (ts[i]?.text === "template" && ts[i + 1]?.text === "<") i = matchingAngle(ts, i + 1) + 1;
  }
  if (["struct", "class", "union"].includes(ts[i].text)) {
    let j = i;
    while (j < ts.length && ts[j].text !== "{" && ts[j].text !== ";" && ts[j].text !== "(") j++;
    if (ts[j]?.text === "{") {
      const close = matching(ts, j, "{", "}");
      unit.structs.push({ name: ts[i + 1].text, open: j, close });
      return endOfStatement(ts, close) + 1;
    }
    if (ts[j]?.text === ";") return j + 1;
  }
  const head = i;
  for (; i < ts.length; i++) {
    const t = ts[i].text;
    if (t === "[[") i = matching(ts, i, "[[", "]]");
    else if (
      t === "(" && isWord(ts[i - 1]) && ts[i - 1].text !== "decltype" && ts[i - 1].text !== "alignas"
    ) {
      const close = matching(ts, i, "(", ")");
      let j = close + 1;
      while (["const", "noexcept"].includes(ts[j]?.text)) j++;
      while (ts[j]?.text === "[[") j = matching(ts, j, "[[", "]]") + 1;
      if (ts[j]?.text === "{") {
        const end = matching(ts, j, "{", "}");
        addFunction(unit, head, i, close, j, end, templated, prototypes);
        return end + 1;
      }
      return endOfStatement(ts, j) + 1;
    } else if (t === "(") i = matching(ts, i, "(", ")");
    else if (t === "=" || t === ";" || t === "{" || t === "[") {
      const end = endOfStatement(ts, i);
      addVariable(unit, ts.slice(head, end));
      return end + 1;
    }
  }
  throw new MslSyntaxError({ ...place(ts[start]), rule: "syntax", message: "declaration without an end" });
}

function endOfStatement(ts: Token[], i: number): number {
  for (; i < ts.length; i++) {
    if (ts[i].text === ";") return i;
    if (ts[i].text === "{") i = matching(ts, i, "{", "}");
    else if (ts[i].text === "(") i = matching(ts, i, "(", ")");
  }
  return ts.length;
}

function addVariable(unit: Unit, tokens: Token[]): void {
  const names = tokens.map((t) => t.text);
  const at = names.indexOf("function_constant");
  if (names[0] === "constant" && at > 0) {
    const bracket = names.indexOf("[[");
    unit.functionConstants.push({
      name: names[bracket - 1],
      type: names.slice(1, bracket - 1).join(" "),
      index: Number(names[at + 2]),
      tokens,
    });
  } else unit.globals.push({ tokens });
}

/** `template [[host_name("x")]] [[kernel]] decltype(f<A>) f<A>;` */
function instantiation(unit: Unit, start: number): number {
  const ts = unit.tokens;
  const end = endOfStatement(ts, start);
  const seg = ts.slice(start, end);
  const host = seg.findIndex((t) => t.text === "host_name");
  const named = host >= 0 ? seg[host + 2].text.replaceAll('"', "") : null;
  let fn: { name: string; args: string } | null = null;
  for (let p = 1; p < seg.length; p++) {
    if (seg[p].text === "[[") p = matching(seg, p, "[[", "]]");
    else if (seg[p].text === "(") {
      if (fn) break;
      p = matching(seg, p, "(", ")");
    } else if (isWord(seg[p]) && seg[p + 1]?.text === "<") {
      const q = matchingAngle(seg, p + 1);
      fn = { name: seg[p].text, args: textOf(seg.slice(p + 2, q)) };
      p = q;
    }
  }
  if (fn && (named !== null || seg.some((t) => t.text === "kernel"))) {
    unit.kernels.push({
      host: named ?? fn.name,
      fn: fn.name,
      args: fn.args,
      params: [],
      maxThreads: 0,
      constantMask: 0,
      at: ts[start],
    });
    if (named === null) report(unit, ts[start], "kernel", `instantiation of '${fn.name}' has no host_name`);
  } else report(unit, ts[start], "kernel", "explicit instantiation of something that is not a kernel");
  for (const t of ts.slice(start, end + 1)) t.out = "";
  return end + 1;
}

function addFunction(
  unit: Unit,
  head: number,
  paren: number,
  close: number,
  open: number,
  end: number,
  templated: boolean,
  prototypes: Prototypes,
): void {
  const ts = unit.tokens;
  const before = ts.slice(head, paren);
  const names = before.map((t) => t.text);
  const name = ts[paren - 1].text;
  const isKernel = names.includes("kernel");
  const params = splitCommas(ts.slice(paren + 1, close));
  unit.functions.push({ name, head: before, params, open, close: end, isKernel });
  if (!isKernel) return;
  if (!names.includes("void")) report(unit, ts[paren - 1], "kernel", "a kernel must return void");
  const max = names.indexOf("max_total_threads_per_threadgroup");
  const maxThreads = max < 0 ? 0 : Number(names[max + 2]);
  const parsed = params.map((p) => kernelParam(unit, p));
  prototypes.set(name, { params: parsed, maxThreads });
  if (!templated) {
    unit.kernels.push({
      host: name,
      fn: name,
      args: null,
      params: parsed,
      maxThreads,
      constantMask: 0,
      at: ts[paren - 1],
    });
  }
}

function kernelParam(unit: Unit, tokens: Token[]): KernelParam {
  const attributes = new Map<string, string>();
  const body: Token[] = [];
  for (let i = 0; i < tokens.length; i++) {
    if (tokens[i].text !== "[[") {
      body.push(tokens[i]);
      continue;
    }
    const end = matching(tokens, i, "[[", "]]");
    for (const a of splitCommas(tokens.slice(i + 1, end))) {
      attributes.set(a[0].text, a.length > 2 ? a.slice(2, -1).map((t) => t.text).join("") : "");
    }
    i = end;
  }
  const words = body.map((t) => t.text);
  const param: KernelParam = {
    name: words.at(-1) ?? "?",
    type: words.slice(0, -1).join(" "),
    kind: "unknown",
    index: 0,
    pointer: words.includes("*") || words.includes("&"),
    reference: words.includes("&"),
    readOnly: words.includes("const") || words.includes("constant"),
    space: words.find((w) => SPACES.has(w)) ?? null,
    condition: attributes.get("function_constant") ?? null,
    at: tokens[0],
  };
  const slot = (attribute: string) => {
    const index = Number(attributes.get(attribute));
    if (!Number.isInteger(index) || index < 0 || index > 30) {
      report(
        unit,
        param.at,
        "kernel",
        `[[${attribute}(${attributes.get(attribute)})]] is not a number from 0 to 30`,
      );
    }
    return index;
  };
  if (attributes.has("buffer")) Object.assign(param, { kind: "buffer", index: slot("buffer") });
  else if (attributes.has("threadgroup")) {
    Object.assign(param, { kind: "threadgroup", index: slot("threadgroup") });
  } else {
    for (const a of attributes.keys()) {
      const number = BUILTINS.indexOf(ALIASES[a] ?? a);
      if (number >= 0) Object.assign(param, { kind: "builtin", index: number });
    }
  }
  return param;
}

/** Attributes mean nothing to the C++ compiler, and some of their names are keywords of ours. */
function blankAttributes(unit: Unit): void {
  const ts = unit.tokens;
  for (let i = 0; i < ts.length; i++) {
    if (ts[i].text !== "[[") continue;
    const end = matching(ts, i, "[[", "]]");
    for (; i <= end; i++) ts[i].out ??= "";
    i--;
  }
}

/** Which of the file's functions each function calls, by name. */
export function callGraph(unit: Unit): Map<string, Set<string>> {
  const names = new Set(unit.functions.map((f) => f.name));
  const calls = new Map<string, Set<string>>();
  for (const f of unit.functions) {
    const found = calls.get(f.name) ?? new Set<string>();
    for (let q = f.open; q < f.close; q++) {
      const t = unit.tokens[q];
      if (names.has(t.text) && ["(", "<"].includes(unit.tokens[q + 1].text)) found.add(t.text);
    }
    calls.set(f.name, found);
  }
  return calls;
}

/** Every function reachable from `name`, itself only when it recurs. */
export function reachable(calls: Map<string, Set<string>>, name: string): Set<string> {
  const seen = new Set<string>();
  const visit = (n: string) => {
    for (const c of calls.get(n) ?? []) {
      if (!seen.has(c)) {
        seen.add(c);
        visit(c);
      }
    }
  };
  visit(name);
  return seen;
}

function markConstants(unit: Unit): void {
  const index = new Map(unit.functionConstants.map((c) => [c.name, c.index]));
  const uses = new Map<string, number>();
  for (const f of unit.functions) {
    let mask = uses.get(f.name) ?? 0;
    for (let q = f.open; q < f.close; q++) {
      const i = index.get(unit.tokens[q].text);
      if (i === undefined || unit.tokens[q - 2]?.text === "is_function_constant_defined") continue;
      mask |= 1 << i;
    }
    uses.set(f.name, mask);
  }
  const calls = callGraph(unit);
  for (const k of unit.kernels) {
    for (const f of [k.fn, ...reachable(calls, k.fn)]) k.constantMask |= uses.get(f) ?? 0;
    for (const p of k.params) {
      const i = p.condition === null ? undefined : index.get(p.condition);
      if (i !== undefined) k.constantMask |= 1 << i;
    }
    k.constantMask >>>= 0;
  }
}
