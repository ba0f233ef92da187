import { assert, assertEquals, assertThrows } from "@std/assert";
import { type Checkpoint, openCheckpoint } from "../../src/checkpoint/open.ts";
import { encodeInput, type RunInput } from "../../src/engine/input.ts";
import { copyOf, layOutWeights, type WeightLayout } from "../../src/engine/weights.ts";
import { pageGroups } from "../../src/schedule/groups.ts";
import { encodePlan, type Limits } from "../../src/schedule/plan.ts";
import {
  firstWeightBuffer,
  OUTPUT,
  type TextPlan,
  textPlan,
  type TextPlanOptions,
} from "../../src/schedule/text.ts";
import { Oracle } from "../../src/conformance/oracle/run.ts";
import {
  cosine,
  fixtureModel,
  type Golden,
  largest,
  maxDifference,
  MODELS,
  readGolden,
} from "../support/models.ts";

const LIMITS: Limits = { rows: 192, out_rows: 192, sequences: 1, pages: 16 };
const PAGES = 8;

interface Fixture {
  checkpoint: Checkpoint;
  golden: Golden;
  layout: WeightLayout;
  weightBytes: Uint8Array[];
}

/** The fixture with its weights in memory, laid out as on a device. */
async function fixture(name: string): Promise<Fixture> {
  const folder = fixtureModel(name);
  assert(folder, `Fixture ${name} is missing.`);
  const checkpoint = await openCheckpoint(folder);
  const layout = layOutWeights(
    checkpoint.weights(),
    checkpoint.files,
    firstWeightBuffer(checkpoint.config),
    16,
  );
  const files = await Promise.all(checkpoint.files.map((file) => Deno.readFile(file.path)));
  const copied = new Uint8Array(layout.copiedBytes);
  for (const copy of layout.copies) {
    copied.set(copyOf(files[copy.file].subarray(copy.offset, copy.offset + copy.length), copy), copy.to);
  }
  const weightBytes: Uint8Array[] = layout.mapped.map((file) => files[file]);
  if (layout.copiedBytes > 0) weightBytes.push(copied);
  return { checkpoint, golden: await readGolden(folder), layout, weightBytes };
}

function plan({ checkpoint, layout }: Fixture, options: Partial<TextPlanOptions>): TextPlan {
  return textPlan(checkpoint.config, checkpoint.weights(), layout, {
    variant: "decode",
    limits: LIMITS,
    kvFormat: "f32",
    kvPages: pageGroups(checkpoint.config).map(() => PAGES),
    exact: true,
    ...options,
  });
}

interface Run {
  logits: Float64Array;
  states(): Float64Array[];
}

/** Runs `ids` as one forward; `outputs` are the rows that produce output. */
function run(fixture: Fixture, plan: TextPlan, ids: number[], outputs: number[]): Run {
  const buffers = plan.buffers.map((buffer, index) => {
    const weights = fixture.weightBytes[index - 1 - plan.groups];
    return weights ?? new Uint8Array(index === 0 ? 0 : buffer.bytes);
  });
  const table = { first: 0, pages: Array.from({ length: PAGES }, (_, i) => i) };
  const input: RunInput = {
    rows: ids.map((token, position) => ({ token, position, sequence: 0, rowClass: "prefill" })),
    outputs: outputs.map((row) => ({ row })),
    sequences: [Array.from({ length: plan.groups }, () => table)],
    groups: plan.groups,
    vocabularySize: plan.vocabularySize,
    outputMask: 2 ** plan.outputs.length - 1,
  };
  assert(encodePlan(plan).length > 0 && encodeInput(input).length > 0);
  const oracle = new Oracle(plan, buffers);
  const logits = oracle.run(input)[OUTPUT.logits];
  return { logits, states: () => plan.states.map((state) => oracle.value(state, input)) };
}

for (const name of [...MODELS.small, ...MODELS.large, ...MODELS.experts]) {
  const ignore = fixtureModel(name) === null;
  Deno.test(
    `the schedule of ${name}, run by the oracle, meets the golden logits and states`,
    { ignore },
    async () => {
      const model = await fixture(name);
      const trace = plan(model, { trace: true });
      for (const { name: prompt, input_ids: ids, media } of model.golden.prompts) {
        if (media?.length) continue;
        const result = run(model, trace, ids, ids.map((_, row) => row));
        const V = trace.vocabularySize;
        const expected = model.golden.tensors.get(`${prompt}.logits_last8`)!.data;
        const logits = result.logits.subarray((ids.length - 8) * V);
        assert(cosine(logits, expected) > 0.9999);
        assert(maxDifference(logits, expected) < 2e-3, `${prompt}: ${maxDifference(logits, expected)}`);
        const states = model.golden.tensors.get(`${prompt}.hidden_states`)!;
        const [count, H] = states.shape;
        const found = result.states();
        assertEquals(found.length, count);
        for (let layer = 0; layer < count; layer++) {
          const golden = states.data.subarray(layer * H, (layer + 1) * H);
          const state = found[layer].subarray((ids.length - 1) * H);
          assert(maxDifference(state, golden) < 1e-3 * largest(golden), `${prompt}, state ${layer}`);
        }
      }
    },
  );

  Deno.test(`fused and elementary schedules of ${name} agree in both variants`, { ignore }, async () => {
    const model = await fixture(name);
    const ids = model.golden.prompts.find(({ media }) => !media?.length)!.input_ids;
    const wanted = [ids.length - 3, ids.length - 1];
    const V = model.checkpoint.config.vocabularySize;
    const all = run(model, plan(model, {}), ids, ids.map((_, row) => row)).logits;
    for (
      const options of [{ fuse: false }, { variant: "prefill" }, { variant: "prefill", fuse: false }] as const
    ) {
      const prefill = "variant" in options;
      const { logits } = run(model, plan(model, options), ids, prefill ? wanted : ids.map((_, row) => row));
      wanted.forEach((row, i) => {
        const at = prefill ? i : row;
        const a = logits.subarray(at * V, (at + 1) * V);
        const b = all.subarray(row * V, (row + 1) * V);
        assert(maxDifference(a, b) < 1e-4, `${JSON.stringify(options)}: ${maxDifference(a, b)}`);
      });
    }
  });
}

Deno.test("prompt rows without output stop after the last layer that owns keys and values", async () => {
  const model = await fixture("e2b");
  const { ops } = plan(model, { variant: "prefill" });
  const owners = model.checkpoint.config.layers.filter((layer) => layer.kvOwner === layer.index);
  const gathered = ops.findIndex((op) => op.kind === "gather");
  const before = ops.slice(0, gathered).flatMap((op) => op.kind === "attention" ? [op.layer] : []);
  assertEquals(before.at(-1), owners.at(-1)!.index);
  for (const op of ops.slice(gathered)) {
    assert(op.kind !== "kv_write");
    const written = op.kind === "candidates" ? op.ids : op.y;
    assertEquals(written.shape[0], "out_rows", `${op.kind} of layer ${op.layer} computes all rows`);
  }
});

Deno.test("a fused layer with per-layer embeddings has seven ops", async () => {
  const model = await fixture("e4b");
  const { ops } = plan(model, {});
  const { layers } = model.checkpoint.config;
  for (const { index } of layers) assertEquals(ops.filter((op) => op.layer === index).length, 7);
  assertEquals(ops.length, layers.length * 7 + 5);
});

Deno.test("a trace belongs to the decode variant alone", async () => {
  const model = await fixture("e2b");
  assertThrows(() => plan(model, { variant: "prefill", trace: true }), RangeError);
});
