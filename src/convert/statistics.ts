/**
 * What the matrices of a model are multiplied with: the mean square of each input column over some texts. The texts run
 * through a plan of the smallest ops in which no two activations share bytes, so that after a run each input can be read.
 */
import type { Checkpoint } from "../checkpoint/open.ts";
import type { WeightTensor } from "../checkpoint/tensor.ts";
import { encodeInput } from "../engine/input.ts";
import { openDevice } from "../engine/open_device.ts";
import { placeWeights } from "../engine/place_weights.ts";
import { layOutWeights, weightsOf } from "../engine/weights.ts";
import { PAGE_TOKENS, pageBytes, pageGroups } from "../schedule/groups.ts";
import type { Op } from "../schedule/ops.ts";
import { tensorBytes } from "../schedule/plan.ts";
import type { Tensor } from "../schedule/tensor.ts";
import { firstWeightBuffer, textPlan } from "../schedule/text.ts";

/** How to gather. */
export interface StatisticsOptions {
  cache?: string;
  signal?: AbortSignal;
  /** tokens done, of how many */ onProgress?: (done: number, total: number) => void;
}

/** Mean square of what each column of a weight is multiplied with, f64 [columns]. */
export type InputStatistics = ReadonlyMap<WeightTensor, Float64Array>;

/** Rows of one run; more would only make the arena larger. */
const ROWS = 32;

/** Runs `texts` (token ids each) through the model on the CPU. Rejects like `load`. */
export async function inputStatistics(
  checkpoint: Checkpoint,
  texts: readonly (readonly number[])[],
  { cache, signal, onProgress }: StatisticsOptions = {},
): Promise<InputStatistics> {
  const { config, files } = checkpoint;
  const weights = checkpoint.weights();
  await using scope = new AsyncDisposableStack();
  const { device: opened } = await openDevice("cpu", {
    precision: "exact",
    cache,
    signal,
    variants: () => new Set(),
  });
  const device = scope.use(opened);
  const layout = layOutWeights(weights, files, firstWeightBuffer(config), device.info().weightAlignment);
  const groups = pageGroups(config);
  const pages = Math.ceil(Math.max(...texts.map((ids) => ids.length)) / PAGE_TOKENS);
  const limits = { rows: ROWS, out_rows: ROWS, sequences: 1, pages: pages * groups.length };
  const plan = textPlan(config, weights, layout, {
    variant: "decode",
    limits,
    kvFormat: "f32",
    kvPages: groups.map(() => pages),
    exact: true,
    fuse: false,
    reuse: false,
  });
  const arena = scope.use(device.createBuffer(plan.buffers[0].bytes));
  const kv = groups.map((group) => scope.use(device.createBuffer(pages * pageBytes(group, "f32"))));
  const placed = await placeWeights(device, checkpoint, layout, scope, { signal });
  const pass = scope.use(await device.compile(plan, [arena, ...kv, ...placed]));

  const inputs = inputsOf(
    plan.ops,
    new Map(weightsOf(weights).map((weight) => [layout.tensor(weight), weight])),
  );
  const sums = new Map<WeightTensor, { sum: Float64Array; rows: number }>();
  const tables = [groups.map(() => ({ first: 0, pages: Array.from({ length: pages }, (_, page) => page) }))];
  const total = texts.reduce((sum, ids) => sum + ids.length, 0);
  let done = 0;
  for (const ids of texts) {
    for (let first = 0; first < ids.length; first += ROWS) {
      signal?.throwIfAborted();
      const tokens = ids.slice(first, first + ROWS);
      const input = encodeInput({
        rows: tokens.map((token, i) => ({ token, position: first + i, sequence: 0, rowClass: "decode" })),
        outputs: tokens.map((_, row) => ({ row })),
        sequences: tables,
        groups: groups.length,
        vocabularySize: config.vocabularySize,
        outputMask: 0,
      });
      await pass.run(input, undefined, { signal });
      for (const { weight, x } of inputs) {
        const values = new Float32Array(
          tensorBytes(x, { ...limits, rows: tokens.length, out_rows: tokens.length }) / 4,
        );
        arena.read(x.offset, values);
        const columns = weight.shape.at(-1)!;
        let entry = sums.get(weight);
        if (entry === undefined) sums.set(weight, entry = { sum: new Float64Array(columns), rows: 0 });
        // The input of an expert's second product holds one row for each chosen expert.
        for (let i = 0, column = 0; i < values.length; i++) {
          entry.sum[column] += values[i] * values[i];
          if (++column === columns) column = 0;
        }
        entry.rows += values.length / columns;
      }
      onProgress?.(done += tokens.length, total);
    }
  }
  return new Map([...sums].map(([weight, { sum, rows }]) => [weight, sum.map((value) => value / rows)]));
}

/** Every product of the plan: the weight, and the activation that it is multiplied with. */
function inputsOf(
  ops: readonly Op[],
  weightOf: ReadonlyMap<Tensor, WeightTensor>,
): { weight: WeightTensor; x: Tensor }[] {
  return ops.flatMap((op) => {
    const used = op.kind === "linear" ? op.weights : op.kind === "expert_linear" ? [op.weight] : [];
    return used.flatMap((tensor) => {
      const weight = weightOf.get(tensor);
      return weight === undefined || !("x" in op) ? [] : [{ weight, x: op.x }];
    });
  });
}
