/** The dispatches that `explain` counts for an H200 beside those that the lowering makes for its limits. */
import { assert, assertEquals } from "@std/assert";
import type { Device } from "../../ffi/device.ts";
import { attentionProblem } from "../../src/conformance/cases/attention.ts";
import { type LinearDescription, linearProblem } from "../../src/conformance/cases/linear.ts";
import type { WeightFormat } from "../../src/conformance/problem.ts";
import { dispatchesOf } from "../../src/schedule/dispatches.ts";
import { machineNamed } from "../../src/schedule/machines.ts";
import { dispatches } from "../gpu/support.ts";

/** Rows of one to three matrices, or of two that are gated: so few that sets stay small, and so many that they grow. */
const OUTPUTS: Pick<LinearDescription, "n" | "epilogue">[] = [
  { n: [8] },
  { n: [2400] },
  { n: [1600, 400, 400] },
  { n: [1200, 1200], epilogue: "geglu" },
];

/** Compares them for decode rows on the matrix units of a device that has the memory of an H200. */
export async function checkDispatches(device: Device): Promise<void> {
  const { threadgroupBytes, copiesCodes } = machineNamed("H200")!;
  const formats: WeightFormat[] = [
    ...([2, 3, 4, 5, 6, 8] as const).map((bits) =>
      ({ kind: "affine", bits, group: 64, scales: "bf16" }) as const
    ),
    { kind: "affine", bits: 4, group: 32, scales: "bf16" },
    { kind: "affine", bits: 8, group: 32, scales: "bf16" },
    ...(["q4_0", "q4_k", "q8_0"] as const).map((type) => ({ kind: "gguf", type }) as const),
  ];
  const cores = device.info().multiprocessors!;
  const units = { threadgroupBytes: threadgroupBytes!, copiesCodes: copiesCodes!, cores };
  let kept = 0, made = 0; // products that make their input themselves, and those that have it made
  for (const format of formats) {
    for (const k of [256, 2560, 5376, 10_240]) {
      for (const outputs of k > 3000 ? OUTPUTS.slice(0, 2) : OUTPUTS) {
        for (const rows of [1, 4, 5]) {
          const d: LinearDescription = { rows, k, ...outputs, format, preNorm: true };
          const problem = linearProblem(d, 5, false);
          const expected = dispatchesOf(problem.plan.ops[0], { rows, outRows: 1, context: 0 }, units);
          const what = `${JSON.stringify(format)}, ${rows} rows of ${k} columns, ${JSON.stringify(outputs)}`;
          assertEquals(await dispatches(device, problem), expected, what);
          if (rows <= 4) expected === 1 ? kept++ : made++;
        }
      }
    }
  }
  assert(kept > 20 && made > 20, `${kept} and ${made}`);
}

/** Compares them for attention of decode rows, whose keys are spread over clusters without matrix units. */
export async function checkAttention(device: Device, matrixUnits: boolean): Promise<void> {
  const { clusters, threadgroupBytes, copiesCodes } = machineNamed("H200")!;
  const units = matrixUnits
    ? {
      threadgroupBytes: threadgroupBytes!,
      copiesCodes: copiesCodes!,
      cores: device.info().multiprocessors!,
    }
    : undefined;
  const counts: number[] = [];
  for (const window of [undefined, 512]) {
    // Eight blocks of 256 keys, and one key more.
    for (const history of [0, 300, 2047, 2048]) {
      for (const rows of [1, 3]) {
        const sequences = [{ history: history + 1 - rows, rows, decode: true }];
        if (history + 1 < rows) continue;
        const problem = attentionProblem(
          { op: "attention", heads: 4, kvHeads: 2, headDim: 64, kv: "f16", window, sequences },
          5,
          false,
        );
        const shape = { rows, outRows: rows, context: history + 1 - rows };
        const expected = dispatchesOf(problem.plan.ops[0], shape, units, clusters);
        const what = `${rows} rows behind ${shape.context} keys, window ${window}`;
        assertEquals(await dispatches(device, problem), expected, what);
        counts.push(expected);
      }
    }
  }
  // One row: full layers up to 2,048 keys and beyond, then windows. Three rows, which see each other, write their keys first.
  const full = matrixUnits ? [2, 2, 3, 2, 3, 2, 3] : [1, 1, 2, 1, 2, 2, 3];
  assertEquals(counts, [...full, 1, 1, 2, 1, 2, 1, 2]);
}
