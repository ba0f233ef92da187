/** Checks of what callers pass: unknown names, types and ranges. */
import { InvalidArgument, UnknownOption } from "./errors.ts";

/** Throws `UnknownOption` for the first name outside `known`, `InvalidArgument` if `options` is no object. */
export function checkNames(options: object, known: readonly string[]): void {
  if (!isRecord(options)) {
    throw new InvalidArgument(`Options are ${describe(options)}. Pass an object such as {${known[0]}: …}.`);
  }
  checkFields(options, known);
}

/** Throws `UnknownOption` for the first own field outside `known`, of an object of any class. */
export function checkFields(value: object, known: readonly string[]): void {
  for (const name of Object.keys(value)) if (!known.includes(name)) throw new UnknownOption(name, known);
}

/** An object whose own fields say all, unlike a list, a Map or a Date. */
export function isRecord(value: unknown): boolean {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype || Object.keys(value).length > 0;
}

/** A whole number from `least` to `most`, or undefined. Throws `InvalidArgument`. */
export function integer(name: string, value: unknown, least: number, most: number): number | undefined {
  if (value === undefined) return undefined;
  if (Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most) {
    return value as number;
  }
  throw new InvalidArgument(
    `${name} is ${describe(value)}; it must be a whole number from ${least} to ${most}.`,
  );
}

/** A number from `least` to `most`, or undefined. Throws `InvalidArgument`. */
export function number(name: string, value: unknown, least: number, most: number): number | undefined {
  if (value === undefined) return undefined;
  if (typeof value === "number" && value >= least && value <= most) return value;
  throw new InvalidArgument(`${name} is ${describe(value)}; it must be a number from ${least} to ${most}.`);
}

/** A number above 0, up to `most`, or undefined. Throws `InvalidArgument`. */
export function positive(name: string, value: unknown, most: number): number | undefined {
  if (value === undefined) return undefined;
  if (typeof value === "number" && value > 0 && value <= most) return value;
  throw new InvalidArgument(`${name} is ${describe(value)}; it must be a number above 0, up to ${most}.`);
}

/** One of a list of words, or undefined. Throws `InvalidArgument`. */
export function choice<T extends string>(name: string, value: unknown, choices: readonly T[]): T | undefined {
  if (value === undefined || choices.includes(value as T)) return value as T | undefined;
  throw new InvalidArgument(`${name} is ${describe(value)}; it must be one of ${choices.join(", ")}.`);
}

/** True or false, or undefined. Throws `InvalidArgument`. */
export function flag(name: string, value: unknown): boolean | undefined {
  if (value === undefined || typeof value === "boolean") return value;
  throw new InvalidArgument(`${name} is ${describe(value)}; it must be true or false.`);
}

/** An AbortSignal, or undefined. Throws `InvalidArgument`. */
export function signalOf(value: unknown): AbortSignal | undefined {
  if (value === undefined || value instanceof AbortSignal) return value;
  throw new InvalidArgument(`signal is ${describe(value)}; it must be an AbortSignal.`);
}

/** A value for an error message, short. */
export function describe(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value.length > 60 ? value.slice(0, 57) + "…" : value);
  if (typeof value === "object" && value !== null) return Array.isArray(value) ? "a list" : "an object";
  if (typeof value === "function") return "a function"; // its text may be long
  return typeof value === "bigint" ? `${value}n` : String(value); // unlike the number, which may be allowed
}
