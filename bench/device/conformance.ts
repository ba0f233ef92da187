/** The conformance table on a device: references on all cores, results case by case. */
import type { Device } from "../../ffi/device.ts";
import { runsOn } from "../../src/conformance/case.ts";
import { allCases } from "../../src/conformance/cases.ts";
import { type Prepared, type Row, runCase } from "../../src/conformance/runner.ts";

/** The outcome of the table. */
export interface Conformance {
  /** by op and precision */ summary: {
    op: string;
    precision: string;
    cases: number;
    failed: number;
    worst: number;
  }[];
  failures: Row[];
  cases: number;
  seconds: number;
}

/** Runs every case that the device has kernels for in both precisions; `only` keeps those of one op. */
export async function conformance(device: Device, only?: string): Promise<Conformance> {
  const started = performance.now();
  const cases = allCases();
  const wanted = cases.flatMap((c, index) =>
    (only === undefined || c.op === only) && runsOn(device.kind, c) ? [index] : []
  );
  const rows: Row[] = [];
  for await (const prepared of references(wanted)) {
    for (const exact of [true, false]) rows.push(await runCase(device, prepared, exact));
  }
  const summary = new Map<string, Conformance["summary"][number]>();
  for (const { op, precision, error, pass } of rows) {
    const key = `${op} ${precision}`;
    const entry = summary.get(key) ?? { op, precision, cases: 0, failed: 0, worst: 0 };
    entry.cases++;
    if (!pass) entry.failed++;
    else entry.worst = Math.max(entry.worst, error);
    summary.set(key, entry);
  }
  return {
    summary: [...summary.values()],
    failures: rows.filter(({ pass }) => !pass),
    cases: rows.length,
    seconds: (performance.now() - started) / 1e3,
  };
}

/** Cases with their references, in the order in which the workers finish them. */
async function* references(wanted: number[]): AsyncGenerator<Prepared> {
  const cases = allCases();
  const ready: Prepared[] = [];
  let failure: unknown;
  let wake = () => {};
  const count = Math.min(Math.max(1, navigator.hardwareConcurrency - 2), 14);
  const workers = Array.from({ length: count }, (_, w) => {
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => {
      ready.push({
        case: cases[data.index],
        problem: data.problem,
        outputs: data.outputs,
        pages: data.pages,
      });
      wake();
    };
    worker.onerror = (event) => {
      event.preventDefault();
      failure ??= new Error(`a reference failed: ${event.message}`);
      wake();
    };
    worker.postMessage(wanted.filter((_, i) => i % count === w));
    return worker;
  });
  try {
    for (let left = wanted.length; left > 0; left--) {
      while (ready.length === 0 && failure === undefined) {
        await new Promise<void>((resolve) => wake = resolve);
      }
      if (failure !== undefined) throw failure;
      yield ready.shift()!;
    }
  } finally {
    for (const worker of workers) worker.terminate();
  }
}
