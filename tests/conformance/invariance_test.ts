/**
 * A row's result does not depend on its batch mates, on how its prompt was cut into chunks, or on the number of threads:
 * bit for bit, on every instruction set of this CPU.
 */
import { assert, assertEquals } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { allCases } from "../../src/conformance/cases.ts";
import { type AttentionDescription, attentionProblem } from "../../src/conformance/cases/attention.ts";
import { type ExpertDescription, expertProblem } from "../../src/conformance/cases/experts.ts";
import { type LinearDescription, linearProblem } from "../../src/conformance/cases/linear.ts";
import { BLOCK_FORMATS, blockColumns, formatName, FORMATS } from "../../src/conformance/case.ts";
import { lackingLevels, LEVELS } from "./levels.ts";
import type { Problem, WeightFormat } from "../../src/conformance/problem.ts";
import { Random } from "../../src/conformance/random.ts";
import { equal, execute } from "../../src/conformance/runner.ts";

const lacking = await lackingLevels();

/** One test per level; `threads` are those of the returned devices. */
function test(name: string, run: (devices: Device[]) => Promise<void>) {
  for (const level of LEVELS) {
    Deno.test({
      name: `invariance: ${name} on cpu ${level}`,
      ignore: lacking.has(level),
      async fn() {
        using one = await Device.open("cpu", { level, threads: 1 });
        using two = await Device.open("cpu", { level, threads: 2 });
        await run([one, two]);
      },
    });
  }
}

/** Bytes of each row of the first output and, if there are more, of the others: rows[r] is all that row r computed. */
async function rowsOf(device: Device, problem: Problem, exact: boolean): Promise<Uint8Array[]> {
  const copied = (await execute(device, problem, exact)).at(-1)!;
  const { outputs } = problem.plan;
  const rows = outputs[0].shape[0] === "out_rows" ? problem.input.outputs.length : problem.input.rows.length;
  const parts: Uint8Array[][] = Array.from({ length: rows }, () => []);
  let at = 0;
  for (const { shape } of outputs) {
    const bytes = (shape[1] as number) * 4;
    for (const row of parts) row.push(copied.subarray(at, at += bytes));
  }
  return parts.map((row) => Uint8Array.from(row.flatMap((part) => [...part])));
}

/** Every thirteenth case of each op. */
const cases = allCases();
const samples = cases.filter((c) => {
  const ofOp = cases.filter((other) => other.op === c.op);
  return ofOp.indexOf(c) % 13 === 0;
});

const EPILOGUES: Partial<LinearDescription>[] = [
  { n: [45], hOut: true, residual: true, postNorm: true, scalar: true, preNorm: true },
  { n: [45, 45], epilogue: "geglu", preNorm: true },
  { n: [45], epilogue: "gelu_mul" },
  { n: [130, 20, 20], biases: [true, false, true] },
];

/** One format of each kind and width, groups and scales in turn. */
const SOME_FORMATS = FORMATS.filter((_, i) => i < 3 || (i - 3) % 6 === 0);
/** Of formats with scales of their own: codes in order with 16 columns to a scale, blocks of 32, of 256. */
const SOME_BLOCKS = BLOCK_FORMATS.filter((_, i) => i % 5 === 2);

/** Formats whose rows the CPU device interleaves where there are sixteen. */
const INTERLEAVED: WeightFormat[] = [
  { kind: "affine", bits: 4, group: 64, scales: "bf16" },
  { kind: "affine", bits: 8, group: 32, scales: "f16" },
  ...(["q4_1", "q5_0", "q8_0", "q4_k", "q6_k"] as const).map((type) => ({ kind: "gguf", type }) as const),
];

/** Rows of runs that the whole is compared with. */
function cuts(rows: number): number[][] {
  const all = Array.from({ length: rows }, (_, i) => i);
  const mixed = new Random(5).permutation(rows);
  return [
    ...[0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, rows - 1].map((row) => [row]),
    all.slice(0, 2),
    all.slice(2, 5),
    all.slice(4, 11),
    all.slice(9, 25),
    all.slice(3),
    all.toReversed(),
    mixed.slice(0, 20),
    mixed.slice(20),
  ];
}

for (const exact of [true, false]) {
  const precision = exact ? "exact" : "fast";
  test(`linear rows are the same alone, in any batch and with any threads in ${precision} mode`, async ([one, two]) => {
    const rows = 40;
    const problems: LinearDescription[] = [
      ...[...SOME_FORMATS, ...SOME_BLOCKS].map((format, i) => {
        const k = blockColumns(format) === 256 ? 512 : 384;
        return { rows, k, n: [45], format, ...EPILOGUES[i % EPILOGUES.length] };
      }),
      ...INTERLEAVED.map((format) => ({ rows, k: 768, n: [48, 16], format, preNorm: true })),
    ];
    for (const d of problems) {
      for (const decodeRows of [0, rows]) {
        const build = (pick: number[]) => linearProblem({ ...d, decodeRows, pick }, 99, exact);
        const together = await rowsOf(two, build(Array.from({ length: rows }, (_, r) => r)), exact);
        for (const [c, pick] of cuts(rows).entries()) {
          const found = await rowsOf(c % 2 ? one : two, build(pick), exact);
          pick.forEach((row, at) =>
            assert(
              equal(found[at], together[row]),
              `${formatName(d.format as WeightFormat)} ${
                decodeRows ? "decode" : "prefill"
              } row ${row} of [${pick}] differs`,
            )
          );
        }
      }
    }
  });

  test(`rows of experts are the same alone, in any batch and with any threads in ${precision} mode`, async ([one, two]) => {
    const rows = 40;
    for (const op of ["expert_gate_up", "expert_down", "expert_linear"] as const) {
      for (const [i, format] of SOME_FORMATS.entries()) {
        const d: ExpertDescription = { op, rows, E: 7, K: 3, k: 128, n: 21, format, preNorm: i % 2 === 0 };
        for (const decodeRows of [0, rows]) {
          const build = (pick: number[]) => expertProblem({ ...d, decodeRows, pick }, 17, exact);
          const together = await rowsOf(two, build(Array.from({ length: rows }, (_, r) => r)), exact);
          for (const [c, pick] of cuts(rows).filter((_, c) => c % 3 === i % 3).entries()) {
            const found = await rowsOf(c % 2 ? one : two, build(pick), exact);
            pick.forEach((row, at) =>
              assert(
                equal(found[at], together[row]),
                `${op} ${formatName(format)} ${
                  decodeRows ? "decode" : "prefill"
                } row ${row} of [${pick}] differs`,
              )
            );
          }
        }
      }
    }
  });

  test(`attention rows are the same in chunks of any size in ${precision} mode`, async ([one, two]) => {
    for (const kv of ["f32", "f16", "q8"] as const) {
      for (const [headDim, window, history] of [[64, undefined, 240], [32, 10, 0], [256, 20, 30]] as const) {
        const rows = 33;
        const d: AttentionDescription = {
          op: "attention",
          sequences: [{ history, rows }],
          heads: 2,
          kvHeads: 1,
          headDim,
          window,
          kv,
        };
        const whole = await rowsOf(two, attentionProblem(d, 7, exact), exact);
        for (const [c, size] of [1, 7, 16].entries()) {
          let pages: Uint8Array<ArrayBuffer> | undefined;
          for (let from = 0; from < rows; from += size) {
            const slice: [number, number] = [from, Math.min(rows, from + size)];
            const problem = attentionProblem({ ...d, sequences: [{ history, rows, slice }] }, 7, exact);
            if (pages) problem.buffers[3] = pages;
            const after = await execute(c % 2 ? one : two, problem, exact);
            pages = after[3];
            const bytes = after.at(-1)!;
            const width = bytes.length / (slice[1] - slice[0]);
            for (let r = slice[0]; r < slice[1]; r++) {
              const row = bytes.subarray((r - from) * width, (r - from + 1) * width);
              assert(equal(row, whole[r]), `${kv} d=${headDim} row ${r} differs in chunks of ${size}`);
            }
          }
        }
      }
    }
  });

  test(`attention rows are the same alone and beside other sequences in ${precision} mode`, async ([one, two]) => {
    for (const op of ["attention", "attend"] as const) {
      for (const kv of ["f32", "f16", "q8"] as const) {
        const d: AttentionDescription = {
          op,
          sequences: [
            { history: 300, rows: 1, decode: true },
            { history: 5, rows: 1, decode: true },
            { history: 255, rows: 1, decode: true },
            { history: 256, rows: 4, decode: true },
            { history: 9000, rows: 1, decode: true },
            { history: 31, rows: 20 },
            { history: 0, rows: 33 },
          ],
          heads: 4,
          kvHeads: 2,
          headDim: 32,
          kv,
        };
        const together = await rowsOf(two, attentionProblem(d, 3, exact), exact);
        let at = 0;
        for (const [s, { rows }] of d.sequences.entries()) {
          const alone = await rowsOf(
            s % 2 ? one : two,
            attentionProblem({ ...d, pick: [s] }, 3, exact),
            exact,
          );
          assertEquals(alone.length, rows);
          for (const row of alone) {
            assert(equal(row, together[at]), `${op} ${kv}: a row of sequence ${s} differs`);
            at++;
          }
        }
      }
    }
  });

  test(`every op gives the same bytes with one thread and with two in ${precision} mode`, async ([one, two]) => {
    for (const c of samples) {
      const problem = c.build(exact);
      const [a, b] = [await execute(one, problem, exact), await execute(two, problem, exact)];
      a.forEach((bytes, n) => assert(equal(bytes, b[n]), `${c.op} ${c.name} depends on threads`));
    }
  });
}

test("linear rows are the same whether of class prefill or decode in exact mode", async ([one, two]) => {
  for (const [i, format] of FORMATS.entries()) {
    const d: LinearDescription = { rows: 20, k: 256, n: [45], format, ...EPILOGUES[i % EPILOGUES.length] };
    const runs: Uint8Array[][] = [];
    for (const [n, decodeRows] of [0, 20, 7].entries()) {
      runs.push(await rowsOf(n % 2 ? one : two, linearProblem({ ...d, decodeRows }, 11, true), true));
    }
    for (let r = 0; r < 20; r++) {
      assert(
        equal(runs[0][r], runs[1][r]) && equal(runs[0][r], runs[2][r]),
        `${formatName(format)} row ${r}`,
      );
    }
  }
});

test("rows of experts are the same whether of class prefill or decode in exact mode", async ([one, two]) => {
  for (const op of ["expert_gate_up", "expert_down"] as const) {
    for (const format of SOME_FORMATS) {
      const d: ExpertDescription = { op, rows: 20, E: 5, K: 2, k: 256, n: 45, format };
      const runs: Uint8Array[][] = [];
      for (const [n, decodeRows] of [0, 20, 7].entries()) {
        runs.push(await rowsOf(n % 2 ? one : two, expertProblem({ ...d, decodeRows }, 11, true), true));
      }
      for (let r = 0; r < 20; r++) {
        assert(
          equal(runs[0][r], runs[1][r]) && equal(runs[0][r], runs[2][r]),
          `${op} ${formatName(format)} row ${r}`,
        );
      }
    }
  }
});

test("attention rows are the same whether of class prefill or decode in exact mode", async ([one, two]) => {
  for (const kv of ["f32", "f16", "q8"] as const) {
    for (const history of [0, 200, 256, 300]) {
      const [prefill, decode] = [false, true].map((decode): AttentionDescription => ({
        op: "attention",
        sequences: [{ history, rows: 9, decode }],
        heads: 4,
        kvHeads: 1,
        headDim: 128,
        kv,
      }));
      const a = await rowsOf(one, attentionProblem(prefill, 13, true), true);
      const b = await rowsOf(two, attentionProblem(decode, 13, true), true);
      a.forEach((row, r) => assert(equal(row, b[r]), `${kv} row ${r} after ${history}`));
    }
  }
});
