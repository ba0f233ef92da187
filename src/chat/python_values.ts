/** How Python would print, compare and serialise the values of a template; templates are written for Python. */

import { Environment, Interpreter } from "npm:@huggingface/jinja@0.5.11";
import { isMark, restoreText } from "./escape.ts";

/** A value inside the template engine. `value` is a string, number, boolean, null, array, Map or function. */
export interface RuntimeValue {
  /** Class name such as "StringValue". */
  type: string;
  /** The plain value. */
  value: unknown;
  /** Python truth. */
  __bool__(): { value: boolean };
}

/** Spends `units` of the step budget; throws when it is used up. */
export type Charge = (units: number) => void;

type ValueClass = new (value?: unknown) => RuntimeValue;

/** The engine does not export its value classes, but it makes values. */
function valueClass(example: unknown): ValueClass {
  return new Environment().set("value", example).constructor as ValueClass;
}

const StringValue = valueClass("");
const BooleanValue = valueClass(false);
const UndefinedValue = valueClass(undefined);
const ArrayValue = valueClass([]);
const TUPLE = { type: "TupleLiteral", value: [] } as unknown as Parameters<Interpreter["evaluate"]>[0];
const TupleValue = new Interpreter().evaluate(TUPLE, new Environment()).constructor as ValueClass;

/** Makes a template value from a plain JavaScript value or function. */
export function toRuntime(value: unknown): RuntimeValue {
  if (typeof value === "string") return new StringValue(value);
  if (typeof value === "boolean") return new BooleanValue(value);
  if (value === undefined) return new UndefinedValue();
  return new Environment().set("value", value);
}

/** Makes a template list from template values. */
export function toList(values: RuntimeValue[]): RuntimeValue {
  return new ArrayValue(values);
}

/** Makes a tuple from template values. */
export function toTuple(values: RuntimeValue[]): RuntimeValue {
  return new TupleValue(values);
}

/** A list or tuple. */
export function isList(value: RuntimeValue): value is RuntimeValue & { value: RuntimeValue[] } {
  return Array.isArray(value.value);
}

/** A dict, namespace or keyword arguments. */
export function isMap(value: RuntimeValue): value is RuntimeValue & { value: Map<string, RuntimeValue> } {
  return value.value instanceof Map;
}

/** A string. */
export function isText(value: RuntimeValue): value is RuntimeValue & { value: string } {
  return value.type === "StringValue";
}

/** Python's `str(value)`; undefined is "" as in Jinja. */
export function pythonString(value: RuntimeValue, charge: Charge): string {
  if (isText(value)) return value.value;
  if (value.type === "UndefinedValue") return "";
  return pythonRepr(value, charge);
}

/** Python's `repr(value)`. */
function pythonRepr(value: RuntimeValue, charge: Charge): string {
  charge(1);
  if (isText(value)) return reprText(value.value, charge);
  if (isList(value)) {
    const items = value.value.map((item) => pythonRepr(item, charge));
    if (value.type !== "TupleValue") return `[${items.join(", ")}]`;
    return items.length === 1 ? `(${items[0]},)` : `(${items.join(", ")})`;
  }
  if (isMap(value)) {
    const items = [...value.value].map(([key, item]) =>
      `${reprText(key, charge)}: ${pythonRepr(item, charge)}`
    );
    return value.type === "NamespaceValue" ? `<Namespace {${items.join(", ")}}>` : `{${items.join(", ")}}`;
  }
  switch (value.type) {
    case "NullValue":
      return "None";
    case "UndefinedValue":
      return "Undefined";
    case "BooleanValue":
      return value.value ? "True" : "False";
    case "IntegerValue":
      return pythonInteger(value.value as number);
    case "FloatValue":
      return pythonFloat(value.value as number);
    default:
      throw new Error(`A ${value.type} cannot be printed`);
  }
}

function reprText(text: string, charge: Charge): string {
  charge(text.length >> 6);
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const body = text.replace(NOT_AS_IT_IS, (marked, hidden: string | undefined) => {
    const c = hidden ?? marked;
    if (c === " " || isMark(marked)) return marked;
    if (c === "'" || c === '"') return c === quote ? "\\" + c : c;
    if (c === "\\") return "\\\\";
    if (c === "\n") return "\\n";
    if (c === "\r") return "\\r";
    if (c === "\t") return "\\t";
    const hex = c.codePointAt(0)!.toString(16);
    if (hex.length <= 2) return "\\x" + hex.padStart(2, "0");
    return hex.length <= 4 ? "\\u" + hex.padStart(4, "0") : "\\U" + hex.padStart(8, "0");
  });
  return quote + body + quote;
}

/** What `repr` may write otherwise: quotes, the backslash, what Python does not print, and a quoted mark of caller text. */
const NOT_AS_IT_IS = /\uF8E0([\uF8E0-\uF8E3])|[\\'"\p{C}\p{Z}]/gu;

/** Digits of an integer; beyond 1e21, where JavaScript would turn to exponents, as Python prints a float. */
function pythonInteger(n: number): string {
  return Math.abs(n) < 1e21 ? String(n) : pythonFloat(n);
}

/** Python's `repr` of a float: shortest digits, exponent form outside 1e-4 … 1e16, at least ".0". */
function pythonFloat(x: number): string {
  if (Number.isNaN(x)) return "nan";
  if (!Number.isFinite(x)) return x < 0 ? "-inf" : "inf";
  if (x === 0) return Object.is(x, -0) ? "-0.0" : "0.0";
  const size = Math.abs(x);
  if (size >= 1e16 || size < 1e-4) {
    const [digits, exponent] = x.toExponential().split("e");
    const power = Math.abs(Number(exponent)).toString().padStart(2, "0");
    return `${digits}e${Number(exponent) < 0 ? "-" : "+"}${power}`;
  }
  const plain = String(x);
  return plain.includes(".") ? plain : plain + ".0";
}

/** Python's `==`: no coercion between kinds, deep on lists and dicts, `True == 1`. */
export function pythonEquals(a: RuntimeValue, b: RuntimeValue, charge: Charge): boolean {
  charge(1);
  if (isList(a) && isList(b)) {
    if (a.value.length !== b.value.length || (a.type === "TupleValue") !== (b.type === "TupleValue")) {
      return false;
    }
    return a.value.every((item, i) => pythonEquals(item, b.value[i], charge));
  }
  if (isMap(a) && isMap(b)) {
    if (a.value.size !== b.value.size) return false;
    return [...a.value].every(([key, item]) => {
      const other = b.value.get(key);
      return other !== undefined && pythonEquals(item, other, charge);
    });
  }
  if (isNumeric(a) && isNumeric(b)) return Number(a.value) === Number(b.value);
  return a.type === b.type && a.value === b.value;
}

function isNumeric(value: RuntimeValue): boolean {
  return value.type === "IntegerValue" || value.type === "FloatValue" || value.type === "BooleanValue";
}

/** Jinja's order of `sort` and `dictsort`: text by lower case and code point, numbers by size; other kinds throw. */
export function compareForSort(a: RuntimeValue, b: RuntimeValue, caseSensitive: boolean): number {
  if (isText(a) && isText(b)) {
    return caseSensitive ? compareText(a.value, b.value) : compareText(
      a.value.toLowerCase(),
      b.value.toLowerCase(),
    );
  }
  if (isNumeric(a) && isNumeric(b)) return Number(a.value) - Number(b.value);
  if (isList(a) && isList(b)) {
    for (let i = 0; i < Math.min(a.value.length, b.value.length); i++) {
      const order = compareForSort(a.value[i], b.value[i], caseSensitive);
      if (order !== 0) return order;
    }
    return a.value.length - b.value.length;
  }
  throw new Error(`Cannot order ${a.type} and ${b.type}`);
}

/** By code point, as Python does; UTF-16 order differs above U+FFFF. The marks of caller text count as what they hide. */
function compareText(a: string, b: string): number {
  const left = Array.from(restoreText(a), (c) => c.codePointAt(0)!);
  const right = Array.from(restoreText(b), (c) => c.codePointAt(0)!);
  for (let i = 0; i < Math.min(left.length, right.length); i++) {
    if (left[i] !== right[i]) return left[i] - right[i];
  }
  return left.length - right.length;
}

/** What Python's `str.strip()` removes; JavaScript's `trim` differs on U+FEFF, U+001C–U+001F and U+0085. */
const PYTHON_SPACE =
  "\\t\\n\\v\\f\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";

/** Python's `strip()`, `lstrip()` and `rstrip()` without arguments. */
export function pythonStrip(text: string, side: "both" | "left" | "right" = "both"): string {
  const space = SPACE_TEST;
  let start = 0;
  let end = text.length;
  if (side !== "right") { while (start < end && space.test(text[start])) start++; }
  if (side !== "left") { while (end > start && space.test(text[end - 1])) end--; }
  return text.slice(start, end);
}

const SPACE_TEST = new RegExp(`[${PYTHON_SPACE}]`);

/** Options of {@link pythonJson}, as of Python's `json.dumps`. */
export interface JsonOptions {
  /** Spaces per level, or null for one line. */
  indent: number | null;
  /** Write non-ASCII characters as `\u` escapes. */
  ensureAscii: boolean;
  /** Sort keys. */
  sortKeys: boolean;
  /** Between items and after keys; null for Python's defaults. */
  separators: [string, string] | null;
}

/** Python's `json.dumps`. */
export function pythonJson(value: RuntimeValue, options: JsonOptions, charge: Charge, depth = 0): string {
  charge(1);
  const { indent } = options;
  const [between, afterKey] = options.separators ?? [indent === null ? ", " : ",", ": "];
  const pad = indent === null ? "" : "\n" + " ".repeat(indent * (depth + 1));
  const closePad = indent === null ? "" : "\n" + " ".repeat(indent * depth);
  const wrap = (open: string, items: string[], close: string) =>
    items.length === 0 ? open + close : open + pad + items.join(between + pad) + closePad + close;
  if (isText(value)) return jsonText(value.value, options, charge);
  if (isList(value)) {
    return wrap("[", value.value.map((item) => pythonJson(item, options, charge, depth + 1)), "]");
  }
  if (isMap(value) && value.type !== "NamespaceValue") {
    const entries = [...value.value];
    if (options.sortKeys) entries.sort(([a], [b]) => compareText(a, b));
    const items = entries.map(([key, item]) =>
      jsonText(key, options, charge) + afterKey + pythonJson(item, options, charge, depth + 1)
    );
    return wrap("{", items, "}");
  }
  switch (value.type) {
    case "NullValue":
      return "null";
    case "BooleanValue":
      return value.value ? "true" : "false";
    case "IntegerValue":
      return pythonInteger(value.value as number);
    case "FloatValue":
      return pythonFloat(value.value as number);
    default:
      throw new Error(`A ${value.type} cannot be written as JSON`);
  }
}

function jsonText(text: string, options: JsonOptions, charge: Charge): string {
  charge(text.length >> 6);
  const quoted = JSON.stringify(text).replaceAll("\x7f", options.ensureAscii ? "\\u007f" : "\x7f");
  if (!options.ensureAscii) return quoted;
  // Marks of caller text stay marks; a quoted mark (U+F8E0 and one of U+F8E0–U+F8E3) is a private-use character itself.
  return quoted.replace(
    /\uF8E0([\uF8E0-\uF8E3])|[\uF8E1-\uF8E3]|[^\0-\x7f]/g,
    (c, mark: string | undefined) => {
      const character = mark ?? c;
      if (mark === undefined && isMark(c)) return c;
      return "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0");
    },
  );
}
