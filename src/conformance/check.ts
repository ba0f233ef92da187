/** Runs many cases on a device, one after another. */
import { macrotask } from "../event_loop.ts";
import type { TableCase } from "./case.ts";
import { type CaseDevice, prepare, type Row, runCase } from "./runner.ts";

/** How cases are run. */
export interface CheckOptions {
  /** each case runs in each of these */ precisions: readonly ("exact" | "fast")[];
  /** ends the check; the generator then throws its reason */ signal?: AbortSignal;
}

/** A row with what its case is about. */
export interface CheckedRow extends Row {
  /** of the case */ variants: readonly string[];
}

/** A row for each case and precision. The event loop has its turn between cases. */
export async function* check(
  device: CaseDevice,
  cases: readonly TableCase[],
  options: CheckOptions,
): AsyncGenerator<CheckedRow, void, undefined> {
  for (const testCase of cases) {
    const prepared = prepare(testCase);
    await macrotask();
    for (const precision of options.precisions) {
      options.signal?.throwIfAborted();
      const row = await runCase(device, prepared, precision === "exact");
      yield { ...row, variants: testCase.variants };
    }
  }
}

/** One sentence about a failed row: kernel, case, and how far it is off. */
export function describeFailure(
  { op, case: name, precision, error, tolerance, reason, kernel }: Row,
): string {
  const what = kernel === undefined ? `The op ${op}` : `The op ${op} (kernel ${kernel})`;
  const off = reason ?? `its error is ${error.toExponential(1)} where ${tolerance} is allowed`;
  return `${what} is wrong in the case "${name}" in ${precision} mode: ${off.replace(/\.$/, "")}.`;
}
