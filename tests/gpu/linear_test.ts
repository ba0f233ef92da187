/**
 * The linear family on a GPU beyond the conformance table: how many dispatches an op takes, sizes at which kernels change their
 * way, and that a row's result is the same bit for bit whatever stands beside it. On software Metal, which runs the
 * lowering and the kernels of the product.
 */
import { assert, assertEquals } from "@std/assert";
import type { Device } from "../../ffi/device.ts";
import { FORMATS, PRODUCT } from "../../src/conformance/case.ts";
import { type LinearDescription, linearProblem } from "../../src/conformance/cases/linear.ts";
import type { Problem, WeightFormat } from "../../src/conformance/problem.ts";
import { equal, execute, prepare, runCase } from "../../src/conformance/runner.ts";
import { openMetal } from "../metal/metal.ts";
import { buildSoftMetalLibrary } from "../softmetal/task.ts";
import { dispatches } from "./support.ts";

const library = await buildSoftMetalLibrary();
const SEED = 23;
const affine4: WeightFormat = { kind: "affine", bits: 4, group: 64, scales: "bf16" };
const affine2: WeightFormat = { kind: "affine", bits: 2, group: 64, scales: "bf16" };
const affine8: WeightFormat = { kind: "affine", bits: 8, group: 64, scales: "bf16" };
const bf16: WeightFormat = { kind: "bf16" };

/** All that each row computed: its bytes of every output. */
async function rowsOf(device: Device, problem: Problem, exact: boolean): Promise<Uint8Array[]> {
  const copied = (await execute(device, problem, exact)).at(-1)!;
  const rows: number[][] = problem.input.rows.map(() => []);
  let at = 0;
  for (const { shape } of problem.plan.outputs) {
    const bytes = (shape[1] as number) * 4;
    for (const row of rows) row.push(...copied.subarray(at, at += bytes));
  }
  return rows.map((row) => Uint8Array.from(row));
}

Deno.test("a linear of one decode row is one dispatch with everything fused; more rows and prompts take two", async () => {
  using device = await openMetal(library.path);
  const everything = { residual: true, postNorm: true, scalar: true, hOut: true, preNorm: true };
  const table: [string, LinearDescription, number][] = [
    ["one row", { rows: 1, k: 64, n: [8], format: affine4 }, 1],
    ["q, k and v with all of the prologue", {
      rows: 1,
      k: 64,
      n: [32, 16, 16],
      format: affine4,
      ...everything,
    }, 1],
    ["gate and up", { rows: 1, k: 64, n: [8, 8], format: affine4, epilogue: "geglu", ...everything }, 1],
    [
      "three matrices of three formats",
      { rows: 1, k: 64, n: [8, 8, 8], format: [affine4, affine8, bf16] },
      3,
    ],
    [
      "gate and up of two formats",
      { rows: 1, k: 64, n: [8, 8], format: [affine4, bf16], epilogue: "geglu" },
      2,
    ],
    ["two decode rows", { rows: 2, k: 64, n: [8], format: affine4, ...everything }, 2],
    ["seventeen decode rows", { rows: 17, k: 64, n: [8], format: affine4, decodeRows: 17 }, 2],
    ["a prompt", { rows: 5, k: 64, n: [8], format: affine4, decodeRows: 0, ...everything }, 2],
    ["one decode row and a prompt", { rows: 5, k: 64, n: [8], format: affine4, decodeRows: 1 }, 3],
  ];
  for (const [what, description, expected] of table) {
    assertEquals(await dispatches(device, linearProblem(description, SEED, true)), expected, what);
  }
});

Deno.test("long rows, staged part by part, and many row groups agree with the oracle", async () => {
  using device = await openMetal(library.path);
  const table: LinearDescription[] = [
    { rows: 1, k: 10240, n: [9], format: affine4, residual: true, postNorm: true, hOut: true, preNorm: true },
    { rows: 1, k: 16384, n: [5, 5], format: affine8, epilogue: "geglu", preNorm: true },
    { rows: 1, k: 17000, n: [5], format: bf16 },
    { rows: 3, k: 10240, n: [9], format: affine4, preNorm: true },
    { rows: 1, k: 64, n: [33_000], format: affine4, preNorm: true },
    { rows: 1, k: 64, n: [17_001, 17_001], format: affine4, epilogue: "geglu" },
    { rows: 1, k: 64, n: [16_001, 9000, 8003], format: affine4, biases: [true, false, true] },
  ];
  for (const d of table) {
    const name = `k=${d.k} n=${d.n}`;
    const build = (exact: boolean) => linearProblem(d, SEED, exact);
    const row = await runCase(device, prepare({ op: "linear", name, tolerance: PRODUCT, build }), true);
    assert(row.pass, `${name}: error ${row.error}; ${row.reason}`);
  }
});

Deno.test("rows of a prompt are the same in tiles of 16, 64 and 128 rows, and agree with the oracle", async () => {
  using device = await openMetal(library.path);
  const rows = 131;
  for (const format of [affine4, bf16]) {
    const d: LinearDescription = { rows, k: 192, n: [16_400], format, decodeRows: 0, preNorm: true };
    const build = (exact: boolean) => linearProblem(d, SEED, exact);
    const name = JSON.stringify(format);
    const row = await runCase(device, prepare({ op: "linear", name, tolerance: PRODUCT, build }), false);
    assert(row.pass, `${name}: error ${row.error}; ${row.reason}`);
    const all = Array.from({ length: rows }, (_, r) => r);
    const together = await rowsOf(device, linearProblem({ ...d, pick: all }, SEED, false), false);
    for (const pick of [all.slice(-60), [0, 63, 64, 127, 128, 130]]) {
      const found = await rowsOf(device, linearProblem({ ...d, pick }, SEED, false), false);
      pick.forEach((row, at) => assert(equal(found[at], together[row]), `${name}: row ${row} differs`));
    }
  }
});

Deno.test("on matrix units a linear of decode rows is one dispatch without a norm, and up to four rows where threadgroup memory holds them", async () => {
  using device = await openMetal(library.path, { matrixUnits: true });
  const everything = { residual: true, postNorm: true, scalar: true, hOut: true, preNorm: true };
  const table: [string, LinearDescription, number][] = [
    ["one row", { rows: 1, k: 64, n: [8], format: affine4, ...everything }, 1],
    ["four rows", { rows: 4, k: 64, n: [8], format: affine4, ...everything }, 1],
    ["five rows", { rows: 5, k: 64, n: [8], format: affine4, ...everything }, 2],
    ["four rows of many columns", { rows: 4, k: 2560, n: [8], format: affine4, ...everything }, 2],
    ["seventeen rows", { rows: 17, k: 64, n: [8], format: affine4, decodeRows: 17, preNorm: true }, 2],
    ["seventeen rows without a norm", { rows: 17, k: 64, n: [8], format: affine4, decodeRows: 17 }, 1],
    ["eight long rows without a norm", { rows: 8, k: 5120, n: [8], format: affine4 }, 1],
    ["nine long rows without a norm", { rows: 9, k: 5120, n: [8], format: affine4 }, 2],
    [
      "three matrices of three formats",
      { rows: 2, k: 64, n: [8, 8, 8], format: [affine4, bf16, affine2] },
      4,
    ],
    ["one decode row and a prompt", { rows: 5, k: 64, n: [8], format: affine4, decodeRows: 1 }, 3],
  ];
  for (const [what, description, expected] of table) {
    assertEquals(await dispatches(device, linearProblem(description, SEED, false)), expected, what);
  }
});

/** One format of each width that has kernels on matrix units, and of each number of columns that share a scale. */
const TILED: WeightFormat[] = [
  ...([2, 3, 4, 5, 6, 8] as const).map((bits) =>
    ({ kind: "affine", bits, group: 64, scales: "bf16" }) as const
  ),
  { kind: "affine", bits: 4, group: 32, scales: "f32" },
  { kind: "affine", bits: 8, group: 128, scales: "f16" },
];

async function assertWithin(device: Device, d: LinearDescription, fast: number): Promise<void> {
  const name = `${JSON.stringify(d.format)} rows=${d.rows} k=${d.k} n=${d.n}`;
  const build = (exact: boolean) => linearProblem({ decodeRows: d.rows, ...d }, SEED, exact);
  const tolerance = { exact: PRODUCT.exact, fast };
  const row = await runCase(device, prepare({ op: "linear", name, tolerance, build }), false);
  assert(row.pass, `${name}: error ${row.error}; ${row.reason}`);
}

/** Activations take part as halves of 11 bits: each errs by 2^-12 of itself at most, and the worst of 66,000 sums by four deviations. */
const OF_HALVES = 2 ** -10;

Deno.test("products on matrix units are those of activations as halves: long rows, many tiles, rows far larger or smaller than others", async () => {
  using device = await openMetal(library.path, { matrixUnits: true });
  const everything = { residual: true, postNorm: true, hOut: true, preNorm: true };
  const table: LinearDescription[] = [
    { rows: 1, k: 10240, n: [9], format: affine4, ...everything },
    { rows: 3, k: 5120, n: [9], format: affine8, preNorm: true },
    { rows: 2, k: 64, n: [33_001], format: affine4, preNorm: true },
    { rows: 1, k: 64, n: [17_001, 17_001], format: affine4, epilogue: "geglu" },
    { rows: 9, k: 128, n: [9001, 5000, 3], format: affine2, biases: [true, false, true] },
    { rows: 17, k: 4160, n: [20], format: affine4 },
    { rows: 3, k: 320, n: [20], format: affine4, magnitude: 1e9 },
    { rows: 3, k: 320, n: [20], format: affine4, magnitude: 1e-9 },
    { rows: 4, k: 320, n: [20], format: affine8, data: "zero" },
    { rows: 4, k: 320, n: [20], format: affine4, data: "outlier" },
  ];
  for (const d of table) await assertWithin(device, d, OF_HALVES);
});

Deno.test("products on matrix units lose nothing of activations that halves hold", async () => {
  using device = await openMetal(library.path, { matrixUnits: true });
  for (const rows of [1, 4, 8, 16]) {
    for (const format of TILED) {
      await assertWithin(device, { rows, k: 640, n: [21, 3], format, data: "short" }, 2e-6);
    }
  }
});

/** One format of each width and kind. */
const WIDTHS = FORMATS.filter((_, i) => i < 3 || (i - 3) % 5 === 0);

/** Runs of some of the rows, which must give the bytes that all of them give together. */
const CUTS: number[][] = [[0], [1], [18], [0, 1], [3, 4, 5], [17, 4, 6, 0], [2, 9, 11, 12, 17], [
  18,
  3,
  0,
  7,
  8,
  9,
  10,
  11,
  1,
]];

for (
  const [rowClass, exact, matrixUnits] of [
    ["decode", true, false],
    ["decode", false, false],
    ["decode", false, true],
    ["prefill", true, false],
    ["prefill", false, false],
  ] as const
) {
  const mode = `${exact ? "exact" : "fast"} mode${matrixUnits ? " on matrix units" : ""}`;
  Deno.test(`${rowClass} rows of a linear are the same alone and in any batch in ${mode}`, async () => {
    using device = await openMetal(library.path, { matrixUnits });
    const shapes: LinearDescription[] = [
      ...(matrixUnits ? TILED : WIDTHS).map((format): LinearDescription => ({
        rows: 19,
        k: 384,
        n: [21],
        format,
        residual: true,
        postNorm: true,
        scalar: true,
        hOut: true,
        preNorm: true,
      })),
      { rows: 19, k: 1280, n: [21, 21], format: affine4, epilogue: "geglu", preNorm: true },
      { rows: 19, k: 640, n: [21], format: affine4 },
      { rows: 19, k: 4160, n: [5], format: affine4 },
      { rows: 19, k: 8192, n: [6, 3], format: affine4, preNorm: true },
      matrixUnits
        ? { rows: 19, k: 160, n: [7, 30, 5], format: { ...affine8, group: 32 }, preNorm: true }
        : { rows: 19, k: 101, n: [7], format: bf16, preNorm: true },
    ];
    for (const d of shapes) {
      const build = (pick: number[]) =>
        linearProblem({ ...d, decodeRows: rowClass === "decode" ? d.rows : 0, pick }, SEED, exact);
      const together = await rowsOf(device, build(Array.from({ length: d.rows }, (_, r) => r)), exact);
      for (const pick of CUTS) {
        const found = await rowsOf(device, build(pick), exact);
        pick.forEach((row, at) => {
          const what = `${JSON.stringify(d.format)} k=${d.k} row ${row} of [${pick}] differs`;
          assert(equal(found[at], together[row]), what);
        });
      }
    }
  });
}
