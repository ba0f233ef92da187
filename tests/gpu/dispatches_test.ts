/** The dispatches that `explain` counts are those that the lowering makes: whole models and single ops on software Metal. */
import { assert, assertEquals } from "@std/assert";
import { encodeInput, type RunInput } from "../../src/engine/input.ts";
import { runsOn } from "../../src/conformance/case.ts";
import { allCases } from "../../src/conformance/cases.ts";
import { costOf, type RunShape } from "../../src/schedule/cost.ts";
import { DECODE_ROWS, dispatchesOf, type MatrixUnits } from "../../src/schedule/dispatches.ts";
import { CORES, THREADGROUP_BYTES } from "../../src/schedule/machines.ts";
import type { Plan } from "../../src/schedule/plan.ts";
import type { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { openMetal } from "../metal/metal.ts";
import { fixture } from "../oracle/model.ts";
import { buildSoftMetalLibrary } from "../softmetal/task.ts";
import { fixtureModel, TINY } from "../support/models.ts";
import { dispatches } from "./support.ts";

const library = await buildSoftMetalLibrary();
/** What the matrix units of software Metal have. */
const METAL_UNITS: MatrixUnits = {
  threadgroupBytes: THREADGROUP_BYTES,
  copiesCodes: false,
  cores: CORES,
};

async function compiled(
  device: Device,
  plan: Plan,
  buffers: readonly Uint8Array<ArrayBuffer>[],
  scope: DisposableStack,
): Promise<Pass> {
  const bound = buffers.map((bytes) => {
    const buffer = scope.use(device.createBuffer(Math.max(bytes.length, 256)));
    buffer.write(0, bytes);
    return buffer;
  });
  return scope.use(await device.compile(plan, bound));
}

/** Kernels that a run starts. */
async function started(pass: Pass, input: RunInput): Promise<number> {
  return (await pass.run(encodeInput({ ...input, outputMask: 0 }))).dispatches;
}

for (const name of ["e2b", "e4b", "e4b-mlx-mixed", "26b-a4b", "26b-a4b-mlx-4bit", "31b", "tiny"]) {
  const folder = name === "tiny" ? TINY : fixtureModel(name);
  Deno.test({
    name:
      `explain counts the dispatches of ${name} as a GPU makes them, op by op, for decode rows and prompts`,
    ignore: folder === null,
    async fn() {
      using device = await openMetal(library.path);
      const model = await fixture(folder!);
      for (const fuse of [true, false]) {
        for (const variant of ["decode", "prefill"] as const) {
          using scope = new DisposableStack();
          const plan = model.plan({ variant, fuse, exact: true });
          const pass = await compiled(device, plan, model.buffers(plan), scope);
          const one: RunShape = { rows: 1, outRows: 1, context: 200 };
          if (variant === "decode") {
            const made = pass.info().kernels.map(({ op, dispatches }) => `${op} ${dispatches}`);
            assertEquals(made, plan.ops.map((op) => `${op.kind} ${dispatchesOf(op, one)}`));
            assertEquals(
              pass.info().dispatches,
              plan.ops.reduce((sum, op) => sum + dispatchesOf(op, one), 0),
            );
          }
          const counts = variant === "decode" ? [1, 2, 5, DECODE_ROWS] : [DECODE_ROWS + 1, 80];
          for (const rows of counts) {
            for (const context of [0, 100]) {
              const outRows = variant === "decode" ? rows : 1;
              const ids = Array.from({ length: rows }, (_, i) => i % 200);
              const outputs = ids.map((_, i) => i).slice(rows - outRows);
              const input = model.input(ids, context, outputs, 0);
              for (const row of input.rows) row.rowClass = variant;
              const expected = plan.ops.reduce(
                (sum, op) => sum + costOf(op, { rows, outRows, context }).dispatches,
                0,
              );
              const what = `${variant} of ${rows} rows after ${context}, fused ${fuse}`;
              assertEquals(await started(pass, input), expected, what);
            }
          }
        }
      }
    },
  });
}

Deno.test({
  name: "explain counts the dispatches of decode rows on matrix units as a GPU makes them",
  ignore: fixtureModel("e4b-mlx-mixed") === null,
  async fn() {
    using device = await openMetal(library.path, { matrixUnits: true });
    const model = await fixture(fixtureModel("e4b-mlx-mixed")!);
    for (const fuse of [true, false]) {
      using scope = new DisposableStack();
      const plan = model.plan({ variant: "decode", fuse, exact: false });
      const pass = await compiled(device, plan, model.buffers(plan), scope);
      for (const rows of [1, 2, 4, 5, DECODE_ROWS]) {
        const ids = Array.from({ length: rows }, (_, i) => i % 200);
        const input = model.input(ids, 0, ids.map((_, i) => i), 0);
        for (const row of input.rows) row.rowClass = "decode";
        const shape = { rows, outRows: rows, context: 0 };
        const counted = (units?: MatrixUnits) =>
          plan.ops.reduce((sum, op) => sum + dispatchesOf(op, shape, units), 0);
        const expected = counted(METAL_UNITS);
        assertEquals(await started(pass, input), expected, `${rows} rows, fused ${fuse}`);
        if (rows === 2) assert(expected < counted(), "matrix units take some of the products");
      }
    }
  },
});

Deno.test("the dispatches of single ops on matrix units are counted as a GPU makes them", async () => {
  using device = await openMetal(library.path, { matrixUnits: true });
  let counted = 0;
  for (const c of allCases().filter((c) => c.op === "linear" && /affine|q4_0|q4_k|q8_0/.test(c.name))) {
    const problem = c.build(false);
    const { plan, input } = problem;
    const decode = input.rows.every((row) => row.rowClass === "decode");
    if (c.work > 1e6 || !decode || input.rows.length > DECODE_ROWS) continue;
    const shape = { rows: input.rows.length, outRows: input.outputs.length, context: 0 };
    const expected = dispatchesOf(plan.ops[0], shape, METAL_UNITS);
    assertEquals(await dispatches(device, problem), expected, c.name);
    counted++;
  }
  assert(counted > 20, `${counted} cases`);
});

Deno.test("the dispatches of single ops are counted as a GPU makes them, in every fusion and mix of formats", async () => {
  using device = await openMetal(library.path);
  const counted = new Map<string, number>();
  for (const c of allCases().filter((c) => runsOn("metal", c))) {
    const kernels = [
      "bf16",
      "affine4/64+bf16|",
      "affine6/32+bf16|",
      "q4_k|",
      "q6_k|",
      "V=262144",
      "f16 sequences",
    ];
    if (!kernels.some((word) => c.name.startsWith(word) || c.name.includes(word)) || c.work > 6e6) continue;
    const problem = c.build(true);
    const { plan, input } = problem;
    const classes = new Set(input.rows.map((row) => row.rowClass));
    const sequences = new Set(input.rows.map((row) => row.sequence));
    // What explain describes: rows of one sequence and one class; up to 16 rows decode.
    const decode = classes.has("decode");
    if (classes.size > 1 || sequences.size > 1 || decode !== input.rows.length <= DECODE_ROWS) continue;
    const shape = {
      rows: input.rows.length,
      outRows: input.outputs.length,
      context: input.rows[0].position,
    };
    // Rows of a linear case have positions that say nothing; only attention looks at them.
    assertEquals(await dispatches(device, problem), dispatchesOf(plan.ops[0], shape), `${c.op} ${c.name}`);
    counted.set(c.op, (counted.get(c.op) ?? 0) + 1);
  }
  for (const op of ["linear", "attention", "attend", "expert_gate_up", "expert_down", "expert_linear"]) {
    assert((counted.get(op) ?? 0) > 10, `${op}: too few cases`);
  }
});
