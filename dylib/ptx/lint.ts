/**
 * Rules of the Metal language, and of this project's conventions, that a C++ compiler would not enforce. The numbers in
 * the messages' rule names are those of the convention list in README.md.
 */
import { isWord, matching, matchingAngle, splitCommas, textOf, type Token } from "./lexer.ts";
import { callGraph, type FunctionBody, reachable, report, SPACES, type Unit } from "./parse.ts";

const BANNED: Record<string, string> = {
  double: "Metal has no double",
  new: "Metal has no dynamic allocation",
  delete: "Metal has no dynamic allocation",
  virtual: "Metal has no virtual functions",
  goto: "Metal has no goto",
  try: "Metal has no exceptions",
  throw: "Metal has no exceptions",
  catch: "Metal has no exceptions",
  noexcept: "Metal has no exceptions",
  std: "Metal has no std namespace",
  dynamic_cast: "Metal has no run-time type information",
  typeid: "Metal has no run-time type information",
  thread_local: "Metal has no thread_local",
  register: "Metal has no register",
  asm: "no inline assembly",
  __asm__: "no inline assembly",
  __attribute__: "no compiler attributes",
  operator: "no operator overloads (their operands would need every address space)",
  volatile: "no volatile: use atomics",
  wchar_t: "Metal has no wchar_t",
  thread_elements: "the lane layout of simdgroup_matrix is unspecified",
  simdgroup_multiply: "matrix products go through tile_mma",
  INFINITY: "use a finite sentinel: fast math may assume that there is no infinity",
  NAN: "fast math may assume that there is no NaN",
  __builtin_inff: "use a finite sentinel: fast math may assume that there is no infinity",
  static_cast: "write T(x)",
  reinterpret_cast: "write a cast with its address space, or as_type",
  const_cast: "constants stay constant",
};

const SCALARS = "bool char uchar short ushort int uint long ulong half float bfloat size_t".split(" ");
const VECTOR = /^(bool|char|uchar|short|ushort|int|uint|long|ulong|half|float|bfloat)[234]$/;
const STATEMENT_WORDS = new Set([
  "return",
  "auto",
  "if",
  "else",
  "for",
  "while",
  "do",
  "switch",
  "case",
  "using",
]);

/** Appends every broken rule to `unit.violations`. */
export function lint(unit: Unit): void {
  words(unit);
  casts(unit);
  for (const f of unit.functions) signature(unit, f);
  for (const f of unit.functions) body(unit, f);
  for (const s of unit.structs) structMethods(unit, s.open, s.close);
  for (const g of unit.globals) global(unit, g.tokens);
  kernels(unit);
  recursion(unit);
}

function words(unit: Unit): void {
  const ts = unit.tokens;
  let attribute = 0;
  for (let i = 0; i < ts.length; i++) {
    const t = ts[i].text;
    if (t === "[[") attribute++;
    if (t === "]]") attribute--;
    if (Object.hasOwn(BANNED, t)) report(unit, ts[i], "banned", `'${t}': ${BANNED[t]}`);
    else if (/^(sm_|SM_|__)/.test(t)) report(unit, ts[i], "banned", `'${t}' is not a name of Metal`);
    if (attribute > 0) continue;
    if (t[0] === '"' && ts[i - 1]?.text !== "," && ts[i].out === undefined) {
      report(unit, ts[i], "banned", "Metal has no string literals");
    }
    if (SPACES.has(t) || t === "kernel") {
      const next = ts[i + 1]?.text ?? "";
      if (["=", ";", ",", ")", ".", "->", "[", "+", "-", "/"].includes(next)) {
        report(unit, ts[i], "keyword", `'${t}' is a keyword and cannot name a variable`);
      }
    }
    if (t === "." && /^[xyzw]{2,4}$/.test(ts[i + 1]?.text ?? "") && ts[i + 2]?.text !== "(") {
      report(unit, ts[i + 1], "swizzle", `'.${ts[i + 1].text}': one component at a time`);
    }
    const p = ts[i - 1]?.text ?? "";
    if (t === "[" && ["&", "=", "]"].includes(ts[i + 1]?.text) && ["=", "(", ",", "return"].includes(p)) {
      report(unit, ts[i], "lambda", "lambdas are not in Metal before 3.2");
    }
    if (
      t === "(" && ts[i + 1]?.text === "*" && isWord(ts[i + 2]) && ts[i + 3]?.text === ")" &&
      ts[i + 4]?.text === "(" && isWord(ts[i - 1]) && p !== "return"
    ) report(unit, ts[i], "function pointer", "function pointers need visible-function tables in Metal");
  }
}

/** Casts: pointer casts name an address space; vector conversions are constructor calls. */
function casts(unit: Unit): void {
  const ts = unit.tokens;
  for (let i = 0; i < ts.length; i++) {
    if (ts[i].text !== "(" || isCallee(ts[i - 1])) continue;
    let j = i + 1, space = false;
    for (; SPACES.has(ts[j]?.text) || ts[j]?.text === "const"; j++) space ||= SPACES.has(ts[j].text);
    if (!isWord(ts[j])) continue;
    const type = ts[j].text;
    j++;
    if (ts[j]?.text === "<") {
      if (type !== "vec") continue;
      j = matchingAngle(ts, j) + 1;
    }
    if (ts[j]?.text === "const") j++;
    if (ts[j]?.text === "*" && ts[j + 1]?.text === ")" && !space) {
      report(unit, ts[i], "address space", `cast to a pointer to '${type}' without an address space`);
    }
    if (ts[j]?.text === ")" && (VECTOR.test(type) || type === "vec") && startsOperand(ts[j + 1])) {
      report(unit, ts[i], "vector cast", `'(${type})x' would reinterpret: write ${type}(x)`);
    }
  }
}

function isCallee(t: Token | undefined): boolean {
  if (t === undefined) return false;
  return (isWord(t) && t.text !== "return" && t.text !== "case") || t.text === ">" || t.text === "]";
}

function startsOperand(t: Token | undefined): boolean {
  return t !== undefined && (isWord(t) || t.text === "(" || /^[.\d]/.test(t.text));
}

function signature(unit: Unit, f: FunctionBody): void {
  for (const p of f.params) {
    const pointer = p.some((t) => t.text === "*" || t.text === "&");
    if (pointer && !p.some((t) => SPACES.has(t.text))) {
      report(
        unit,
        p[0],
        "address space",
        `pointer or reference parameter of '${f.name}' has no address space`,
      );
    }
  }
  const result = f.head.slice(0, -1);
  if (result.some((t) => t.text === "*" || t.text === "&") && !result.some((t) => SPACES.has(t.text))) {
    report(unit, f.head[0], "address space", `the pointer that '${f.name}' returns has no address space`);
  }
}

function body(unit: Unit, f: FunctionBody): void {
  const ts = unit.tokens;
  let depth = 0;
  for (let q = f.open; q < f.close; q++) {
    const t = ts[q].text;
    if (t === "{") depth++;
    if (t === "}") depth--;
    if (t === "static") report(unit, ts[q], "static", "Metal has no static local variables");
    if (t === "simdgroup_multiply_accumulate" && !f.name.startsWith("tile_mma")) {
      report(unit, ts[q], "tile_mma", "matrix products go through tile_mma");
    }
    if (!["{", ";", "}", ")"].includes(ts[q - 1].text)) continue;
    if (t === "threadgroup") threadgroupVariable(unit, f, q, depth);
    else localPointer(unit, q);
  }
}

/** Threadgroup variables: in the kernel body, one a statement, without an initialiser. */
function threadgroupVariable(unit: Unit, f: FunctionBody, q: number, depth: number): void {
  const ts = unit.tokens;
  let end = q;
  while (ts[end].text !== ";") end++;
  const declaration = ts.slice(q + 1, end);
  const cut = declaration.findIndex((t) => ["[", "=", "[["].includes(t.text));
  const before = cut < 0 ? declaration : declaration.slice(0, cut);
  if (before.some((t) => t.text === "*" || t.text === "&")) return;
  if (!f.isKernel || depth !== 1) {
    report(
      unit,
      ts[q],
      "threadgroup variable",
      "threadgroup variables stand in the outermost block of a kernel",
    );
    return;
  }
  if (declaration.some((t) => t.text === "=" || t.text === "{")) {
    report(unit, ts[q], "threadgroup variable", "a threadgroup variable cannot have an initialiser");
  }
  if (splitCommas(declaration).length > 1) {
    report(unit, ts[q], "threadgroup variable", "one threadgroup variable a statement");
  }
  const name = before.at(-1)!;
  const type = textOf(before.slice(0, -1)), suffix = textOf(declaration.slice(before.length));
  for (let i = q; i < end; i++) ts[i].out = "";
  ts[q].out = `SM_TGVAR(${name.text}, ${suffix}, ${type})`;
}

/** `float* p = …` at the start of a statement. */
function localPointer(unit: Unit, q: number): void {
  const ts = unit.tokens;
  if (!isWord(ts[q]) || SPACES.has(ts[q].text) || STATEMENT_WORDS.has(ts[q].text)) return;
  let z = ts[q].text === "const" ? q + 1 : q;
  if (!isWord(ts[z]) || SPACES.has(ts[z].text)) return;
  z = ts[z + 1]?.text === "<" && ts[z].text === "vec" ? matchingAngle(ts, z + 1) : z;
  if (ts[z + 1]?.text !== "*" && ts[z + 1]?.text !== "&") return;
  const name = ts[z + 2]?.text === "const" ? z + 3 : z + 2;
  if (isWord(ts[name]) && ["=", ";", ",", "["].includes(ts[name + 1]?.text)) {
    report(
      unit,
      ts[q],
      "address space",
      `local pointer or reference '${ts[name].text}' has no address space`,
    );
  }
}

function structMethods(unit: Unit, open: number, close: number): void {
  const ts = unit.tokens;
  for (let q = open + 1; q < close; q++) {
    if (ts[q].text === "[[") q = matching(ts, q, "[[", "]]");
    else if (ts[q].text === "(" && isWord(ts[q - 1])) {
      report(unit, ts[q - 1], "struct method", `'${ts[q - 1].text}': structs are plain data`);
      return;
    }
  }
}

function global(unit: Unit, tokens: Token[]): void {
  const names = tokens.map((t) => t.text);
  const cut = names.findIndex((n) => n === "=" || n === "[");
  if (!(cut < 0 ? names : names.slice(0, cut)).includes("constant")) {
    report(unit, tokens[0], "global", "a program-scope variable must be in the constant address space");
  }
}

function kernels(unit: Unit): void {
  const seen = new Set<string>();
  for (const k of unit.kernels) {
    if (seen.has(k.host)) report(unit, k.at, "kernel", `two kernels are named '${k.host}'`);
    seen.add(k.host);
    const slots = new Set<string>();
    let size: string | null = null;
    for (const p of k.params) {
      if (p.kind === "unknown") {
        report(unit, p.at, "kernel", `parameter '${p.name}' has no attribute that Metal knows`);
      }
      if (p.kind === "buffer" && p.space !== "device" && p.space !== "constant") {
        report(
          unit,
          p.at,
          "address space",
          `buffer argument '${p.name}' is in neither device nor constant space`,
        );
      }
      if (p.kind === "threadgroup" && p.space !== "threadgroup") {
        report(unit, p.at, "address space", `threadgroup argument '${p.name}' is not in threadgroup space`);
      }
      if (p.kind === "buffer" || p.kind === "threadgroup") {
        const slot = `[[${p.kind}(${p.index})]]`;
        if (slots.has(slot)) report(unit, p.at, "kernel", `duplicate ${slot}`);
        slots.add(slot);
      }
      if (p.kind !== "builtin") continue;
      const type = /^(uint|ushort)([23])?$/.exec(p.type.split(" ").at(-1) ?? "");
      if (!type) {
        report(unit, p.at, "builtin", `'${p.name}': '${p.type}' is not uint, ushort or a vector of them`);
      } else if ([2, 7, 8, 9, 10].includes(p.index)) {
        if (type[2]) report(unit, p.at, "builtin", `'${p.name}' must be a scalar`);
      } else {
        const width = type[2] ?? "1";
        if (size !== null && size !== width) {
          report(unit, p.at, "builtin", "position parameters must all be scalars or vectors of one size");
        }
        size = width;
      }
    }
  }
  const indices = new Set<number>();
  for (const c of unit.functionConstants) {
    if (indices.has(c.index)) {
      report(unit, c.tokens[0], "kernel", `duplicate [[function_constant(${c.index})]]`);
    }
    if (!SCALARS.includes(c.type)) {
      report(unit, c.tokens[0], "kernel", `function constant of type '${c.type}'`);
    }
    indices.add(c.index);
  }
}

function recursion(unit: Unit): void {
  const calls = callGraph(unit);
  for (const f of unit.functions) {
    if (reachable(calls, f.name).has(f.name)) {
      report(unit, f.head.at(-1)!, "recursion", `'${f.name}' calls itself`);
    }
  }
}
