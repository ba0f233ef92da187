/**
 * Typed face of the untyped `deno-std` assertions, the only `@std` that the npm registry carries.
 * Tests import it as `@std/assert`.
 */
import * as untyped from "npm:deno-std@1.4.0/assert/mod.js";

// deno-lint-ignore no-explicit-any
const std = untyped as any;
// deno-lint-ignore no-explicit-any
type ErrorClass<E extends Error> = new (...args: any[]) => E;

export const assert: (condition: unknown, message?: string) => asserts condition = std.assert;
export const assertEquals: <T>(actual: T, expected: T, message?: string) => void = std.assertEquals;
export const assertNotEquals: <T>(actual: T, expected: T, message?: string) => void = std.assertNotEquals;
export const assertAlmostEquals: (
  actual: number,
  expected: number,
  tolerance?: number,
  message?: string,
) => void = std.assertAlmostEquals;
export const assertStringIncludes: (actual: string, expected: string, message?: string) => void =
  std.assertStringIncludes;
export const assertMatch: (actual: string, expected: RegExp, message?: string) => void = std.assertMatch;
export const assertThrows: <E extends Error = Error>(
  fn: () => unknown,
  errorClass?: ErrorClass<E>,
  messageIncludes?: string,
) => E = std.assertThrows;
export const assertRejects: <E extends Error = Error>(
  fn: () => PromiseLike<unknown>,
  errorClass?: ErrorClass<E>,
  messageIncludes?: string,
) => Promise<E> = std.assertRejects;
