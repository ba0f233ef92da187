/** What a template's loops go through, bind and offer as `loop`. */

import { isList, isMap, isText, type RuntimeValue, toRuntime } from "./python_values.ts";

/** The part of a loop's variable, `x` or `x, y`, that binding looks at. */
export interface LoopTarget {
  /** "Identifier", or "TupleLiteral" for several variables. */
  type: string;
  /** The name, or the nodes of the names. */
  value: unknown;
}

/** Thrown by break and continue on their way to the loop, with what the turn has printed. */
export class LoopControl extends Error {
  /** Text that the turn printed before it was left. */
  output = "";
  /** `kind` is the statement. */
  constructor(readonly kind: "Break" | "Continue") {
    super(`${kind.toLowerCase()} outside a loop`);
  }
}

/** Bodies of loops → whether they read `loop`. */
const readsLoop = new WeakMap<object, boolean>();

/** What a loop goes through. */
export function iterate(value: RuntimeValue): RuntimeValue[] {
  if (isList(value)) return value.value;
  if (isText(value)) return Array.from(value.value, toRuntime);
  if (isMap(value) && value.type !== "NamespaceValue") return [...value.value.keys()].map(toRuntime);
  if (value.type === "UndefinedValue") return [];
  throw new Error(`A ${value.type} cannot be iterated`);
}

/** Gives the loop's variable, or its several variables, their values. */
export function bind(
  target: LoopTarget,
  item: RuntimeValue,
  set: (name: string, value: RuntimeValue) => void,
): void {
  if (target.type === "Identifier") {
    set(String(target.value), item);
    return;
  }
  const names = target.value as { value: string }[];
  const values = iterate(item);
  if (values.length !== names.length) {
    throw new Error(`${values.length} values cannot be unpacked into ${names.length} variables`);
  }
  names.forEach((name, i) => set(name.value, values[i]));
}

/** Whether the body reads `loop`. */
export function usesLoop(body: readonly object[]): boolean {
  let known = readsLoop.get(body);
  if (known === undefined) {
    const mentions = (part: unknown): boolean => {
      if (typeof part !== "object" || part === null) return false;
      const { type, value } = part as { type?: unknown; value?: unknown };
      if (type === "Identifier" && value === "loop") return true;
      return (part instanceof Map ? [...part.keys(), ...part.values()] : Object.values(part)).some(mentions);
    };
    readsLoop.set(body, known = mentions(body));
  }
  return known;
}

/** The fields of Jinja's `loop`. */
export function loopObject(items: readonly RuntimeValue[], i: number): RuntimeValue {
  const loop = toRuntime({
    index: i + 1,
    index0: i,
    revindex: items.length - i,
    revindex0: items.length - i - 1,
    first: i === 0,
    last: i === items.length - 1,
    length: items.length,
  }) as RuntimeValue & { value: Map<string, RuntimeValue> };
  loop.value.set("previtem", items[i - 1] ?? toRuntime(undefined));
  loop.value.set("nextitem", items[i + 1] ?? toRuntime(undefined));
  return loop;
}
