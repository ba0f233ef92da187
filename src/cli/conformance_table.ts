/** The conformance table as a summary: one line for each op, and a sentence for each failure. */
import { type CheckedRow, describeFailure } from "../conformance/check.ts";
import { style, table } from "./terminal.ts";

/** The case of one op and precision that comes closest to its bound, or is furthest beyond. */
export interface Worst {
  case: string;
  /** norm of the difference over norm of the reference; null: there is no number, or the run failed */ error:
    | number
    | null;
  tolerance: number;
}

/** One op. */
export interface OpSummary {
  op: string;
  /** in each precision */ cases: number;
  /** rows, of both precisions */ failed: number;
  exact?: Worst;
  fast?: Worst;
}

/** What one device did. */
export interface ConformanceSummary {
  ops: OpSummary[];
  /** a sentence for each failed row */ failures: string[];
}

/** Groups rows by op. */
export function summarise(rows: readonly CheckedRow[]): ConformanceSummary {
  const ops = new Map<string, OpSummary & { names: Set<string> }>();
  for (const { op, case: name, precision, error, tolerance, pass } of rows) {
    let entry = ops.get(op);
    if (!entry) ops.set(op, entry = { op, cases: 0, failed: 0, names: new Set() });
    entry.names.add(name);
    if (!pass) entry.failed++;
    const worst = entry[precision];
    const share = worst === undefined ? -1 : (worst.error ?? Infinity) / worst.tolerance;
    if (error / tolerance > share) {
      entry[precision] = { case: name, error: Number.isFinite(error) ? error : null, tolerance };
    }
  }
  return {
    ops: [...ops.values()].map(({ names, ...entry }) => ({ ...entry, cases: names.size })),
    failures: rows.filter((row) => !row.pass).map(describeFailure),
  };
}

/** The summary as text. */
export function describeSummary({ ops, failures }: ConformanceSummary, mostFailures = 20): string {
  const cells = (worst: Worst | undefined) =>
    worst === undefined ? ["", ""] : [number(worst.error), number(worst.tolerance)];
  const lines = table([
    ["op", "cases", "exact", "allowed", "fast", "allowed", "state"],
    ...ops.map(({ op, cases, failed, exact, fast }) => [
      op,
      cases,
      ...cells(exact),
      ...cells(fast),
      failed === 0 ? "ok" : `${failed} failed`,
    ]),
  ]).split("\n").map((line, i) => {
    if (i === 0) return style(line, "bold");
    return ops[i - 1].failed === 0 ? line : style(line, "red");
  });
  const more = failures.length > mostFailures
    ? [`… and ${failures.length - mostFailures} more failures`]
    : [];
  return [...lines, ...failures.slice(0, mostFailures), ...more].join("\n");
}

function number(value: number | null): string {
  return value === null ? "no number" : value === 0 ? "0" : value.toExponential(1);
}
