/**
 * Routed experts on a GPU beyond the conformance table: how many dispatches their ops take, that a row's result is the same bit for
 * bit whatever stands beside it, and more experts, rows and turns than the table has. On software Metal.
 */
import { assert, assertEquals } from "@std/assert";
import { PRODUCT } from "../../src/conformance/case.ts";
import { type ExpertDescription, expertProblem } from "../../src/conformance/cases/experts.ts";
import type { WeightFormat } from "../../src/conformance/problem.ts";
import { equal, execute, prepare, runCase } from "../../src/conformance/runner.ts";
import { openMetal } from "../metal/metal.ts";
import { buildSoftMetalLibrary } from "../softmetal/task.ts";
import { dispatches } from "./support.ts";

const library = await buildSoftMetalLibrary();
const SEED = 29;
const affine4: WeightFormat = { kind: "affine", bits: 4, group: 64, scales: "bf16" };
const affine8: WeightFormat = { kind: "affine", bits: 8, group: 32, scales: "f16" };
const bf16: WeightFormat = { kind: "bf16" };

Deno.test("products with chosen experts are one dispatch for decode rows, three or four for prompts, however many experts", async () => {
  using device = await openMetal(library.path);
  const small = { E: 5, K: 2, k: 64, n: 8 } as const;
  const table: [string, ExpertDescription, number][] = [
    ["gate and up of one row", { op: "expert_gate_up", ...small, rows: 1, format: affine4 }, 1],
    ["gate and up of eight rows", { op: "expert_gate_up", ...small, rows: 8, format: affine4 }, 1],
    ["gate and up apart", { op: "expert_gate_up", ...small, rows: 8, format: [affine4, affine4] }, 1],
    ["gate and up of two formats", { op: "expert_gate_up", ...small, rows: 3, format: [affine4, bf16] }, 4],
    ["of a prompt", { op: "expert_gate_up", ...small, rows: 20, format: affine4 }, 3],
    ["of two formats for a prompt", {
      op: "expert_gate_up",
      ...small,
      rows: 20,
      format: [affine4, bf16],
    }, 4],
    ["both classes", { op: "expert_gate_up", ...small, rows: 20, format: affine4, decodeRows: 3 }, 4],
    ["down of one row", { op: "expert_down", ...small, rows: 1, format: affine4 }, 1],
    ["down of sixteen rows", { op: "expert_down", ...small, rows: 16, format: affine4 }, 1],
    ["gate and up of long rows", { op: "expert_gate_up", ...small, k: 3200, rows: 1, format: affine4 }, 2],
    [
      "gate and up for many slots",
      { op: "expert_gate_up", ...small, E: 40, K: 33, rows: 1, format: affine4 },
      2,
    ],
    ["down of long rows", { op: "expert_down", ...small, k: 5120, rows: 1, format: affine4 }, 2],
    ["down of many slots", { op: "expert_down", ...small, E: 40, K: 33, rows: 1, format: affine4 }, 2],
    ["down of a prompt", { op: "expert_down", ...small, rows: 20, format: affine4 }, 4],
    ["a linear of one row", { op: "expert_linear", ...small, rows: 1, format: bf16 }, 2],
    ["a linear of a prompt", { op: "expert_linear", ...small, rows: 20, format: bf16, eachSlot: true }, 3],
    ["more experts", { op: "expert_gate_up", ...small, E: 70, K: 8, rows: 20, format: bf16 }, 3],
  ];
  for (const [what, description, expected] of table) {
    assertEquals(await dispatches(device, expertProblem(description, SEED, true)), expected, what);
  }
});

/** Runs of some of the rows, which must give the bytes that all of them give together. */
const CUTS: number[][] = [[0], [1], [18], [0, 1], [3, 4, 5], [18, 3, 0, 7, 8, 9, 10, 11, 1]];

for (const rowClass of ["decode", "prefill"] as const) {
  for (const exact of [true, false]) {
    const precision = exact ? "exact" : "fast";
    Deno.test(`${rowClass} rows of the experts' ops are the same alone and in any batch in ${precision} mode`, async () => {
      using device = await openMetal(library.path);
      for (const op of ["expert_gate_up", "expert_down", "expert_linear"] as const) {
        for (const [format, k] of [[affine4, 2304], [affine8, 96], [bf16, 101]] as const) {
          const d: ExpertDescription = { op, rows: 19, E: 6, K: 3, k, n: 10, format };
          const run = async (pick: number[]) => {
            const problem = expertProblem(
              { ...d, decodeRows: rowClass === "decode" ? d.rows : 0, pick },
              SEED,
              exact,
            );
            const bytes = (await execute(device, problem, exact)).at(-1)!;
            const each = bytes.length / pick.length;
            return pick.map((_, i) => bytes.subarray(i * each, (i + 1) * each));
          };
          const together = await run(Array.from({ length: d.rows }, (_, r) => r));
          for (const pick of CUTS) {
            const found = await run(pick);
            pick.forEach((row, at) => {
              const what = `${op} ${JSON.stringify(format)} row ${row} of [${pick}] differs`;
              assert(equal(found[at], together[row]), what);
            });
          }
        }
      }
    });
  }
}

Deno.test("more experts than a simdgroup has lanes, more slots than a threadgroup has simdgroups, and long rows agree with the oracle", async () => {
  using device = await openMetal(library.path);
  const table: ExpertDescription[] = [
    { op: "expert_gate_up", rows: 40, E: 130, K: 9, k: 64, n: 9, format: affine4, preNorm: true },
    { op: "expert_gate_up", rows: 300, E: 33, K: 2, k: 64, n: 5, format: bf16, choice: "missing" },
    { op: "expert_gate_up", rows: 2, E: 3, K: 2, k: 2816, n: 7, format: affine4, preNorm: true },
    { op: "expert_down", rows: 3, E: 40, K: 17, k: 64, n: 9, format: affine4 },
    { op: "expert_down", rows: 40, E: 40, K: 17, k: 64, n: 70, format: affine8 },
    { op: "expert_down", rows: 3, E: 12, K: 11, k: 64, n: 9, format: affine4, choice: "missing" },
    { op: "expert_linear", rows: 2, E: 3, K: 2, k: 5000, n: 3, format: bf16, eachSlot: true },
  ];
  for (const d of table) {
    const name = `${d.op} rows=${d.rows} experts=${d.K}/${d.E} k=${d.k} n=${d.n}`;
    const build = (exact: boolean) => expertProblem(d, SEED, exact);
    const row = await runCase(device, prepare({ op: d.op, name, tolerance: PRODUCT, build }), true);
    assert(row.pass, `${name}: error ${row.error}; ${row.reason}`);
  }
});

Deno.test("prompt rows whose products would take too much memory at once are summed in turns", async () => {
  using device = await openMetal(library.path);
  // 17 · 20000 · 4 bytes a row: 49 rows fit in 64 MiB.
  const d: ExpertDescription = { op: "expert_down", rows: 60, E: 17, K: 17, k: 4, n: 20_000, format: bf16 };
  const build = (exact: boolean) => expertProblem(d, SEED, exact);
  assertEquals(await dispatches(device, build(true)), 8);
  const row = await runCase(device, prepare({ op: d.op, name: "turns", tolerance: PRODUCT, build }), true);
  assert(row.pass, `error ${row.error}; ${row.reason}`);
});
