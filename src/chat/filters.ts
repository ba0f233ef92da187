/**
 * Filters and string methods as Python and Jinja define them. They replace those of the template engine that differ
 * (None, lists, Python's whitespace, sort order) or that have no bound on what they build.
 */

import {
  type Charge,
  compareForSort,
  isList,
  isMap,
  isText,
  pythonJson,
  pythonString,
  pythonStrip,
  type RuntimeValue,
  toList,
  toRuntime,
  toTuple,
} from "./python_values.ts";

/** What a filter may use of the interpreter. */
export interface FilterContext {
  /** Spends steps. */
  charge: Charge;
  /** Throws if a text of so many UTF-16 units would pass the output limit. */
  checkLength: (units: number) => void;
  /** Applies a filter by its name, for `map("upper")`. */
  apply: (name: string, operand: RuntimeValue) => RuntimeValue;
}

/** One filter: operand, positional and keyword arguments. */
export type Filter = (
  operand: RuntimeValue,
  args: RuntimeValue[],
  named: Map<string, RuntimeValue>,
  context: FilterContext,
) => RuntimeValue;

/** A filter that works on text and returns text; other operands are printed first, as Jinja does. */
function onText(change: (text: string) => string): Filter {
  return (operand, _args, _named, context) => toRuntime(change(pythonString(operand, context.charge)));
}

const length: Filter = (operand) => {
  if (isText(operand)) return toRuntime(Array.from(operand.value).length);
  if (isList(operand)) return toRuntime(operand.value.length);
  if (isMap(operand)) return toRuntime(operand.value.size);
  if (operand.type === "UndefinedValue") return toRuntime(0);
  throw new Error(`A ${operand.type} has no length`);
};

const fallback: Filter = (operand, args, named) => {
  const value = args[0] ?? named.get("default_value") ?? toRuntime("");
  const alsoFalse = (args[1] ?? named.get("boolean"))?.__bool__().value ?? false;
  return operand.type === "UndefinedValue" || (alsoFalse && !operand.__bool__().value) ? value : operand;
};

const dictsort: Filter = (operand, args, named, context) => {
  if (!isMap(operand)) throw new Error(`dictsort needs a mapping, not a ${operand.type}`);
  const caseSensitive = (args[0] ?? named.get("case_sensitive"))?.__bool__().value ?? false;
  const by = (args[1] ?? named.get("by"))?.value ?? "key";
  const reverse = (args[2] ?? named.get("reverse"))?.__bool__().value ?? false;
  if (by !== "key" && by !== "value") throw new Error(`dictsort sorts by "key" or "value", not by "${by}"`);
  const pairs = [...operand.value].map(([key, value]) => [toRuntime(key), value]);
  return toList(
    sorted(pairs, (pair) => pair[by === "key" ? 0 : 1], caseSensitive, reverse, context).map(toTuple),
  );
};

const sort: Filter = (operand, args, named, context) => {
  const reverse = (args[0] ?? named.get("reverse"))?.__bool__().value ?? false;
  const caseSensitive = (args[1] ?? named.get("case_sensitive"))?.__bool__().value ?? false;
  const attribute = args[2] ?? named.get("attribute");
  const key = (item: RuntimeValue) => attribute === undefined ? item : attributeOf(item, attribute);
  return toList(sorted(items(operand), key, caseSensitive, reverse, context));
};

const map: Filter = (operand, args, named, context) => {
  if (!operand.__bool__().value) return toList([]); // None and 0 too, as in Jinja
  const attribute = named.get("attribute");
  if (attribute !== undefined) {
    const otherwise = named.get("default");
    return toList(
      items(operand).map((item) => {
        const value = attributeOf(item, attribute);
        return value.type === "UndefinedValue" && otherwise !== undefined ? otherwise : value;
      }),
    );
  }
  const name = args[0];
  if (name === undefined || !isText(name)) throw new Error("map needs the name of a filter or attribute=…");
  return toList(
    items(operand).map((item) => {
      context.charge(1);
      return context.apply(name.value, item);
    }),
  );
};

const join: Filter = (operand, args, named, context) => {
  const attribute = args[1] ?? named.get("attribute");
  const separator = args[0] ?? named.get("d");
  const parts = items(operand).map((item) =>
    pythonString(attribute === undefined ? item : attributeOf(item, attribute), context.charge)
  );
  return joinParts(parts, separator === undefined ? "" : pythonString(separator, context.charge), context);
};

const tojson: Filter = (operand, _args, named, context) => {
  const indent = named.get("indent");
  const spaces = indent?.type === "IntegerValue" ? indent.value as number : null;
  if (spaces !== null && (spaces < 0 || spaces > 64)) {
    throw new Error(`tojson indents by 0 to 64, not ${spaces}`);
  }
  const separators = named.get("separators");
  let pair: [string, string] | null = null;
  if (separators !== undefined && separators.type !== "NullValue") {
    if (!isList(separators) || separators.value.length !== 2 || !separators.value.every(isText)) {
      throw new Error("tojson needs two texts as separators");
    }
    pair = [String(separators.value[0].value), String(separators.value[1].value)];
  }
  const json = pythonJson(operand, {
    indent: spaces,
    ensureAscii: named.get("ensure_ascii")?.__bool__().value ?? false,
    sortKeys: named.get("sort_keys")?.__bool__().value ?? false,
    separators: pair,
  }, context.charge);
  return toRuntime(json);
};

const replace: Filter = (operand, args, named, context) => {
  const [from, to] = args;
  if (from === undefined || to === undefined) throw new Error("replace needs the old and the new text");
  const count = args[2] ?? named.get("count");
  return toRuntime(replaceText(
    pythonString(operand, context.charge),
    pythonString(from, context.charge),
    pythonString(to, context.charge),
    count?.type === "IntegerValue" ? count.value as number : -1,
    context,
  ));
};

const indent: Filter = (operand, args, named, context) => {
  const width = args[0] ?? named.get("width") ?? toRuntime(4);
  const first = (args[1] ?? named.get("first"))?.__bool__().value ?? false;
  const blank = (args[2] ?? named.get("blank"))?.__bool__().value ?? false;
  const lines = pythonString(operand, context.charge).split("\n");
  if (width.type === "IntegerValue") context.checkLength(lines.length * (width.value as number));
  const pad = isText(width) ? width.value : " ".repeat(Math.max(0, Number(width.value)));
  context.checkLength(lines.length * pad.length);
  return toRuntime(
    lines.map((line, i) => (i === 0 && !first) || (line === "" && !blank) ? line : pad + line).join("\n"),
  );
};

/** Filters by name. */
export const FILTERS: ReadonlyMap<string, Filter> = new Map<string, Filter>([
  ["trim", onText((text) => pythonStrip(text))],
  ["upper", onText((text) => text.toUpperCase())],
  ["lower", onText((text) => text.toLowerCase())],
  ["title", onText(titleCase)],
  ["capitalize", onText(capitalize)],
  ["string", onText((text) => text)],
  ["length", length],
  ["count", length],
  ["default", fallback],
  ["d", fallback],
  ["list", (operand) => toList(items(operand).slice())],
  ["first", (operand) => items(operand)[0] ?? toRuntime(undefined)],
  ["last", (operand) => items(operand).at(-1) ?? toRuntime(undefined)],
  ["items", (operand) => operand.type === "UndefinedValue" ? toList([]) : toList(pairsOf(operand))],
  ["dictsort", dictsort],
  ["sort", sort],
  ["map", map],
  ["join", join],
  ["tojson", tojson],
  ["replace", replace],
  ["indent", indent],
]);

/** A method of Python's `str`, by name; those of the engine that behave as Python's are not listed. */
export const STRING_METHODS: ReadonlyMap<
  string,
  (text: string, args: RuntimeValue[], context: FilterContext) => RuntimeValue
> = new Map<string, (text: string, args: RuntimeValue[], context: FilterContext) => RuntimeValue>([
  ["strip", (text, args) => toRuntime(stripCharacters(text, args[0], "both"))],
  ["lstrip", (text, args) => toRuntime(stripCharacters(text, args[0], "left"))],
  ["rstrip", (text, args) => toRuntime(stripCharacters(text, args[0], "right"))],
  ["title", (text) => toRuntime(titleCase(text))],
  ["capitalize", (text) => toRuntime(capitalize(text))],
  ["replace", (text, args, context) => replace(toRuntime(text), args, new Map(), context)],
  [
    "join",
    (text, args, context) => join(args[0] ?? toRuntime(undefined), [toRuntime(text)], new Map(), context),
  ],
  ["count", (text, args) => toRuntime(text.split(textArgument("count", args)).length - 1)],
  ["find", (text, args) => toRuntime(text.indexOf(textArgument("find", args)))],
  ["removeprefix", (text, args) => {
    const prefix = textArgument("removeprefix", args);
    return toRuntime(text.startsWith(prefix) ? text.slice(prefix.length) : text);
  }],
  ["removesuffix", (text, args) => {
    const suffix = textArgument("removesuffix", args);
    return toRuntime(suffix !== "" && text.endsWith(suffix) ? text.slice(0, -suffix.length) : text);
  }],
  ["splitlines", (text) => {
    // deno-lint-ignore no-control-regex
    const lines = text.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/);
    if (lines.at(-1) === "") lines.pop();
    return toRuntime(lines);
  }],
]);

function textArgument(method: string, args: RuntimeValue[]): string {
  if (args[0] === undefined || !isText(args[0]) || args[0].value === "") {
    throw new Error(`${method}() needs a text that is not empty`);
  }
  return args[0].value;
}

function stripCharacters(
  text: string,
  characters: RuntimeValue | undefined,
  side: "both" | "left" | "right",
): string {
  if (characters === undefined || characters.type === "NullValue") return pythonStrip(text, side);
  if (!isText(characters)) throw new Error(`strip() takes a text, not a ${characters.type}`);
  const set = new Set(characters.value);
  const letters = Array.from(text);
  let start = 0;
  let end = letters.length;
  if (side !== "right") { while (start < end && set.has(letters[start])) start++; }
  if (side !== "left") { while (end > start && set.has(letters[end - 1])) end--; }
  return letters.slice(start, end).join("");
}

function titleCase(text: string): string {
  return text.replace(/\p{L}+/gu, (word) => capitalize(word));
}

function capitalize(text: string): string {
  const [first = "", ...rest] = Array.from(text);
  return first.toUpperCase() + rest.join("").toLowerCase();
}

/** What a `for` would see: items of a list, keys of a mapping, characters of a text, nothing of undefined. */
function items(operand: RuntimeValue): RuntimeValue[] {
  if (isList(operand)) return operand.value;
  if (isMap(operand)) return [...operand.value.keys()].map(toRuntime);
  if (isText(operand)) return Array.from(operand.value, toRuntime);
  if (operand.type === "UndefinedValue") return [];
  throw new Error(`A ${operand.type} cannot be iterated`);
}

function pairsOf(operand: RuntimeValue): RuntimeValue[] {
  if (!isMap(operand)) throw new Error(`items needs a mapping, not a ${operand.type}`);
  return [...operand.value].map(([key, value]) => toTuple([toRuntime(key), value]));
}

/** `a.b.0` of an item; undefined where a step is missing. */
function attributeOf(item: RuntimeValue, path: RuntimeValue): RuntimeValue {
  let value = item;
  for (const step of String(path.value).split(".")) {
    const next = isMap(value) ? value.value.get(step) : isList(value) ? value.value[Number(step)] : undefined;
    if (next === undefined) return toRuntime(undefined);
    value = next;
  }
  return value;
}

function sorted<T>(
  list: readonly T[],
  key: (item: T) => RuntimeValue,
  caseSensitive: boolean,
  reverse: boolean,
  context: FilterContext,
): T[] {
  return list.slice().sort((a, b) => {
    const left = key(a);
    const right = key(b);
    context.charge(1 + (Math.min(sizeOf(left), sizeOf(right)) >> 4));
    const order = compareForSort(left, right, caseSensitive);
    return reverse ? -order : order;
  });
}

function sizeOf(value: RuntimeValue): number {
  return isText(value) ? value.value.length : isList(value) ? value.value.length * 16 : 0;
}

function joinParts(parts: string[], separator: string, context: FilterContext): RuntimeValue {
  context.checkLength(
    parts.reduce((sum, part) => sum + part.length, separator.length * Math.max(0, parts.length - 1)),
  );
  return toRuntime(parts.join(separator));
}

/** Python's `str.replace`; the size of the result is checked before it is built. */
function replaceText(text: string, from: string, to: string, count: number, context: FilterContext): string {
  const pieces = from === "" ? ["", ...Array.from(text), ""] : text.split(from);
  const replaced = Math.min(pieces.length - 1, count < 0 ? Infinity : count);
  context.checkLength(text.length + replaced * (to.length - from.length));
  const head = pieces.slice(0, replaced + 1).join(to);
  const tail = pieces.slice(replaced + 1);
  return tail.length === 0 ? head : head + from + tail.join(from);
}
