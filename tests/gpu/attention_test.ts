/**
 * Attention on a GPU beyond the conformance table: how many dispatches an op takes, and that a row's result is the same bit for
 * bit whatever stands beside it. On software Metal, which runs the lowering and the kernels of the product.
 */
import { assert, assertEquals, assertRejects } from "@std/assert";
import type { Device } from "../../ffi/device.ts";
import { DeviceError } from "../../src/errors.ts";
import { type AttentionDescription, attentionProblem } from "../../src/conformance/cases/attention.ts";
import type { Problem } from "../../src/conformance/problem.ts";
import { equal, execute } from "../../src/conformance/runner.ts";
import { openMetal } from "../metal/metal.ts";
import { buildSoftMetalLibrary } from "../softmetal/task.ts";
import { checkRawValues } from "../support/raw_values.ts";
import { dispatches } from "./support.ts";

const library = await buildSoftMetalLibrary();
const SEED = 17;

/** The rows of y, and the KV pages afterwards. */
async function run(
  device: Device,
  problem: Problem,
  exact: boolean,
): Promise<{ rows: Uint8Array[]; pages: Uint8Array<ArrayBuffer> }> {
  const after = await execute(device, problem, exact);
  const width = (problem.plan.outputs[0].shape[1] as number) * 4;
  const copied = after.at(-1)!;
  const rows = Array.from(
    { length: copied.length / width },
    (_, r) => copied.subarray(r * width, (r + 1) * width),
  );
  return { rows, pages: after[3] };
}

const common = { op: "attention", heads: 4, kvHeads: 2, headDim: 64, kv: "f16" } as const;

Deno.test("the dispatches of an attention are those of the design: 1 sliding, 2 full, 2 for a prompt", async () => {
  using device = await openMetal(library.path);
  const one = [{ history: 300, rows: 1, decode: true }];
  const many = [300, 0, 31].map((history) => ({ history, rows: 1, decode: true }));
  const verify = [{ history: 300, rows: 4, decode: true }];
  const prompt = [{ history: 20, rows: 30 }];
  const table: [string, Partial<AttentionDescription>, number][] = [
    ["a sliding decode row", { sequences: one, window: 128 }, 1],
    ["sliding decode rows of several sequences", { sequences: many, window: 128 }, 1],
    ["a full decode row", { sequences: one }, 2],
    ["full decode rows of several sequences", { sequences: many }, 2],
    ["a decode row that reads another layer's keys", { sequences: one, ownsKv: false }, 2],
    ["sliding decode rows of one sequence", { sequences: verify, window: 128 }, 2],
    ["full decode rows of one sequence", { sequences: verify }, 3],
    ["a sliding prompt", { sequences: prompt, window: 16 }, 2],
    ["a prompt that reads another layer's keys", { sequences: prompt, ownsKv: false }, 1],
    ["decode rows and a prompt", { sequences: [...one, ...prompt], window: 128 }, 3],
    [
      "attend of a window longer than one threadgroup walks",
      { op: "attend", sequences: one, window: 4096 },
      2,
    ],
  ];
  for (const [what, d, expected] of table) {
    const problem = attentionProblem({ ...common, sequences: [], ...d }, SEED, true);
    assertEquals(await dispatches(device, problem), expected, what);
  }
});

Deno.test("decode rows of one sequence in one pass give the bytes that they give one at a time", async () => {
  using device = await openMetal(library.path);
  for (const kv of ["f16", "f32", "q8"] as const) {
    for (const window of [undefined, 40]) {
      for (const history of [0, 30, 254]) {
        const rows = 4;
        const d: AttentionDescription = { ...common, kv, window, sequences: [] };
        const sequence = { history, rows, decode: true };
        const together = await run(
          device,
          attentionProblem({ ...d, sequences: [sequence] }, SEED, false),
          false,
        );
        let pages: Uint8Array<ArrayBuffer> | undefined;
        for (let r = 0; r < rows; r++) {
          const slice: [number, number] = [r, r + 1];
          const problem = attentionProblem({ ...d, sequences: [{ ...sequence, slice }] }, SEED, false);
          if (pages) problem.buffers[3] = pages;
          const single = await run(device, problem, false);
          pages = single.pages;
          assert(
            equal(single.rows[0], together.rows[r]),
            `${kv} window ${window} row ${r} after ${history} differs`,
          );
        }
        assert(equal(pages!, together.pages), `${kv} window ${window} after ${history}: the pages differ`);
      }
    }
  }
});

for (const exact of [true, false]) {
  const precision = exact ? "exact" : "fast";

  Deno.test(`rows of a prompt are the same in chunks of any size in ${precision} mode`, async () => {
    using device = await openMetal(library.path);
    const shapes = [[64, undefined, 240, "f16"], [32, 10, 0, "f16"], [128, 20, 30, "f16"]] as const;
    const coded = [[64, undefined, 240, "q8"], [128, 20, 30, "q8"]] as const;
    for (const [headDim, window, history, kv] of [...shapes, ...coded]) {
      const rows = 37;
      const d: AttentionDescription = { ...common, kv, heads: 2, kvHeads: 1, headDim, window, sequences: [] };
      const whole = await run(
        device,
        attentionProblem({ ...d, sequences: [{ history, rows }] }, SEED, exact),
        exact,
      );
      for (const size of [1, 7, 16]) {
        let pages: Uint8Array<ArrayBuffer> | undefined;
        for (let from = 0; from < rows; from += size) {
          const slice: [number, number] = [from, Math.min(rows, from + size)];
          const problem = attentionProblem({ ...d, sequences: [{ history, rows, slice }] }, SEED, exact);
          if (pages) problem.buffers[3] = pages;
          const chunk = await run(device, problem, exact);
          pages = chunk.pages;
          chunk.rows.forEach((row, i) =>
            assert(
              equal(row, whole.rows[from + i]),
              `${kv} d=${headDim} row ${from + i} differs in chunks of ${size}`,
            )
          );
        }
      }
    }
  });

  Deno.test(`attention rows are the same alone and beside other sequences in ${precision} mode`, async () => {
    using device = await openMetal(library.path);
    for (const [op, kv] of [["attention", "f16"], ["attend", "f16"], ["attention", "q8"]] as const) {
      const d: AttentionDescription = {
        ...common,
        op,
        kv,
        headDim: 32,
        sequences: [
          { history: 300, rows: 1, decode: true },
          { history: 5, rows: 1, decode: true },
          { history: 256, rows: 4, decode: true },
          // beyond 64 parts of one 256-key block each, parts grow
          { history: 17000, rows: 1, decode: true },
          { history: 31, rows: 20 },
          { history: 0, rows: 33 },
        ],
      };
      const together = await run(device, attentionProblem(d, SEED, exact), exact);
      let at = 0;
      for (const s of d.sequences.keys()) {
        const alone = await run(device, attentionProblem({ ...d, pick: [s] }, SEED, exact), exact);
        assertEquals(alone.rows.length, d.sequences[s].rows);
        for (const row of alone.rows) {
          assert(equal(row, together.rows[at++]), `${op} ${kv}: a row of sequence ${s} differs`);
        }
      }
    }
  });
}

Deno.test("pages that no 16-byte load could read are refused when the plan is compiled", async () => {
  using device = await openMetal(library.path);
  for (const kv of ["f16", "q8"] as const) {
    const problem = attentionProblem({ ...common, kv, sequences: [{ history: 3, rows: 1 }] }, SEED, true);
    const [op] = problem.plan.ops;
    assert(op.kind === "attention");
    op.kv.pages.offset += 8;
    await assertRejects(() => dispatches(device, problem), DeviceError, "264");
  }
});

Deno.test("a head size without kernels is refused when the plan is compiled", async () => {
  using device = await openMetal(library.path);
  const problem = attentionProblem(
    { ...common, headDim: 96, sequences: [{ history: 3, rows: 1 }] },
    SEED,
    true,
  );
  await assertRejects(() => dispatches(device, problem), DeviceError, "Head size 96");
});

Deno.test("R60: keys and values beyond half's range stay finite in every cache, raw values as in Gemma 3", async () => {
  using device = await openMetal(library.path);
  await checkRawValues(device, true);
});
