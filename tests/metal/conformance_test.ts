/**
 * The conformance table on software Metal: the product's library and its own kernels. In order, in reversed order of lanes,
 * threadgroups and independent dispatches, with every access checked, and with a lower limit of threads. Ops whose decode rows can go
 * through matrix units are checked so too, which no Metal device does by itself.
 */
import { assert } from "@std/assert";
import { runsOn } from "../../src/conformance/case.ts";
import { allCases } from "../../src/conformance/cases.ts";
import { prepare, type Prepared, type Row, runCase } from "../../src/conformance/runner.ts";
import { openMetal, productLibrary, SoftwareMetal } from "./metal.ts";

const ignore = Deno.build.os !== "linux";
const cases = allCases().filter((c) => runsOn("metal", c));
const ops = [...new Set(cases.map(({ op }) => op))];
/**
 * Where every access is checked, a case may have this many bytes of buffers and this many rows. Of KV pages a case touches
 * a small part.
 */
const SMALL_BYTES = 100_000;
const SMALL_BYTES_WITH_PAGES = 3_000_000;
const SMALL_ROWS = 40;

interface Mode {
  name: string;
  options: Record<string, string>;
  small?: boolean;
  /** in fast mode and on weights that have such kernels alone */ matrixUnits?: boolean;
}

const MODES: Mode[] = [
  { name: "in order", options: {} },
  { name: "in reversed order", options: { order: "reverse" } },
  { name: "with every access checked, at small shapes", options: { detect: "1" }, small: true },
  {
    name: "with pipelines that take 256 threads, at small shapes",
    options: { max_threads: "256" },
    small: true,
  },
  { name: "on matrix units", options: {}, matrixUnits: true },
  {
    name: "on matrix units with every access checked, at small shapes",
    options: { detect: "1" },
    small: true,
    matrixUnits: true,
  },
];
const ON_MATRIX_UNITS = new Set(["linear"]);
const DEFAULTS: Record<string, string> = { order: "forward", detect: "0", max_threads: "1024" };

/** Reference results of the op at hand; computed once, used by every mode. */
let current: { op: string; prepared: Prepared[] } | undefined;

function preparedFor(op: string): Prepared[] {
  if (current?.op !== op) {
    current = { op, prepared: cases.filter((c) => c.op === op).map(prepare) };
  }
  return current.prepared;
}

function isSmall({ problem }: Prepared): boolean {
  const bytes = problem.buffers.reduce((sum, buffer) => sum + buffer.length, 0);
  const most = problem.plan.ops.some((op) => "kv" in op) ? SMALL_BYTES_WITH_PAGES : SMALL_BYTES;
  return bytes <= most && problem.input.rows.length <= SMALL_ROWS;
}

/** Whether decode rows meet weights that have kernels on matrix units. */
function hasTiles({ case: { name }, problem }: Prepared): boolean {
  return problem.input.rows[0].rowClass === "decode" && /affine|q4_0|q4_k|q8_0/.test(name);
}

function describe({ op, case: name, precision, error, tolerance, reason }: Row): string {
  return `${op} ${name} (${precision}): error ${error.toExponential(2)}, allowed ${tolerance}` +
    (reason ? `; ${reason}` : "");
}

Deno.test({
  name: "conformance: software Metal refuses what it has no kernel for and names the op",
  ignore,
  async fn() {
    using device = await openMetal(await productLibrary());
    // Angles between whole positions are not exact in the kernels' fixed point.
    const c = cases.find((c) => c.op === "rope")!;
    const build = (exact: boolean) => {
      const problem = c.build(exact);
      const [op] = problem.plan.ops;
      assert(op.kind === "rope");
      op.rope.positionOffset = 0.5;
      return problem;
    };
    const row = await runCase(device, prepare({ ...c, build }), true);
    assert(row.code === "unsupported" && row.reason?.includes("0.5"), describe(row));
    for (const c of allCases().filter((c) => c.cpuOnly)) {
      const row = await runCase(device, prepare(c), true);
      assert(row.code === "unsupported" && row.reason?.includes(`the op ${c.op}`), describe(row));
    }
  },
});

for (const op of ops) {
  for (const { name, options, small, matrixUnits } of MODES) {
    if (matrixUnits && !ON_MATRIX_UNITS.has(op)) continue;
    Deno.test({
      name: `conformance: ${op} agrees with the oracle on software Metal ${name}`,
      ignore,
      async fn() {
        const path = await productLibrary();
        const metal = await SoftwareMetal.open();
        for (const [option, value] of Object.entries(options)) metal.set(option, value);
        try {
          using device = await openMetal(path, { matrixUnits });
          const failed: Row[] = [];
          let count = 0;
          for (const prepared of preparedFor(op)) {
            if (small && !isSmall(prepared)) continue;
            if (matrixUnits && !hasTiles(prepared)) continue;
            for (const exact of matrixUnits ? [false] : [true, false]) {
              const row = await runCase(device, prepared, exact);
              count++;
              if (!row.pass) failed.push(row);
            }
          }
          assert(count > 0, "no case is small enough");
          assert(
            failed.length === 0,
            `${failed.length} of ${count} cases fail:\n${failed.slice(0, 30).map(describe).join("\n")}`,
          );
        } finally {
          for (const option of Object.keys(options)) metal.set(option, DEFAULTS[option]);
        }
      },
    });
  }
}
