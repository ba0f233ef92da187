/** A fixture model under the oracle: its plan, its weights' bytes and one sequence. */
import type { OutputRow, RunInput } from "../../src/engine/input.ts";
import { copyOf, layOutWeights } from "../../src/engine/weights.ts";
import { pageBytes, pageGroups } from "../../src/schedule/groups.ts";
import type { Plan } from "../../src/schedule/plan.ts";
import { firstWeightBuffer, type TextPlan, textPlan, type TextPlanOptions } from "../../src/schedule/text.ts";
import { type Checkpoint, openCheckpoint } from "../../src/checkpoint/open.ts";

/** Rows that one forward of these plans may have. */
export const MOST_ROWS = 200;
/** Pages that each group has, in an order that is not that of positions. */
export const PAGES = [5, 2, 7, 0, 4, 1, 6, 3];

/** A model whose plans can be run by anything that takes buffers' bytes. */
export interface FixtureModel {
  checkpoint: Checkpoint;
  /** builds a plan; the same weights' tensors at each call */
  plan(options: Pick<TextPlanOptions, "variant" | "exact"> & Partial<TextPlanOptions>): TextPlan;
  /** bytes of each buffer of a plan: arena and pages poisoned, weights as stored */
  buffers(plan: Plan): Uint8Array<ArrayBuffer>[];
  /** input of a forward of `ids` from `position` on; `outputs` are indices into `ids` */
  input(ids: readonly number[], position: number, outputs: readonly number[], outputMask: number): RunInput;
}

/** Opens a fixture folder. */
export async function fixture(folder: string): Promise<FixtureModel> {
  const checkpoint = await openCheckpoint(folder);
  const { config } = checkpoint;
  const weights = checkpoint.weights();
  const first = firstWeightBuffer(config);
  const layout = layOutWeights(weights, checkpoint.files, first, 16);
  const files = await Promise.all(checkpoint.files.map((file) => Deno.readFile(file.path)));
  const copied = new Uint8Array(layout.copiedBytes);
  for (const copy of layout.copies) {
    copied.set(copyOf(files[copy.file].subarray(copy.offset, copy.offset + copy.length), copy), copy.to);
  }
  const stored = [...layout.mapped.map((file) => files[file]), ...(copied.length > 0 ? [copied] : [])];
  const groups = pageGroups(config);
  const tables = groups.map(() => ({ first: 0, pages: PAGES }));
  return {
    checkpoint,
    plan: (options) =>
      textPlan(config, weights, layout, {
        limits: { rows: MOST_ROWS, out_rows: MOST_ROWS, sequences: 2, pages: 64 },
        kvFormat: "f32",
        kvPages: groups.map(() => PAGES.length),
        ...options,
      }),
    buffers: (plan) => [
      new Uint8Array(plan.buffers[0].bytes).fill(0xff),
      ...groups.map((group, g) => {
        const kind = plan.buffers[1 + g].bytes === PAGES.length * pageBytes(group, "f32") ? "f32" : "f16";
        return new Uint8Array(PAGES.length * pageBytes(group, kind)).fill(0xff);
      }),
      ...stored,
    ],
    input: (ids, position, outputs, outputMask) => ({
      rows: ids.map((token, i) => ({
        token,
        position: position + i,
        sequence: 0,
        rowClass: ids.length === 1 ? "decode" : "prefill",
      })),
      outputs: outputs.map((row): OutputRow => ({ row })),
      sequences: [tables],
      groups: groups.length,
      vocabularySize: config.vocabularySize,
      outputMask,
    }),
  };
}
