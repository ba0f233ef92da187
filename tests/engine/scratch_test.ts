/** What a load reckons with for scratch, before plans are compiled, against what the CPU device then takes. */
import { assert } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { openCheckpoint } from "../../src/checkpoint/open.ts";
import { placeWeights } from "../../src/engine/place_weights.ts";
import { TextPlans } from "../../src/engine/text_plans.ts";
import { layOutWeights } from "../../src/engine/weights.ts";
import { pageBytes } from "../../src/schedule/groups.ts";
import { CPU_THREAD_BYTES } from "../../src/schedule/scratch.ts";
import { firstWeightBuffer } from "../../src/schedule/text.ts";
import { fixtureModel, gemma3Model, GOLDEN_MODELS, TINY } from "../support/models.ts";

const models = [...GOLDEN_MODELS.map(fixtureModel), gemma3Model(), TINY].filter((path) => path !== null);

/** Bytes of scratch that a load expects, and that the device takes for the plans of a model. */
async function measure(path: string, exact: boolean, threads: number) {
  const checkpoint = await openCheckpoint(path);
  const { config, files } = checkpoint, weights = checkpoint.weights();
  await using stack = new AsyncDisposableStack();
  const device = stack.use(await Device.open("cpu", { threads }));
  const layout = layOutWeights({ weights }, files, firstWeightBuffer(config), device.info().weightAlignment);
  const parts = { withState: false, takesMedia: false, sees: false };
  const plans = new TextPlans({ config, weights, layout, kvFormat: "f16", exact, ...parts });
  const room = { entries: 64, kvPages: plans.groups.map(() => 32) };
  const buffers = [
    stack.use(device.createBuffer(plans.arenaBytes)),
    ...plans.groups.map((group) => stack.use(device.createBuffer(32 * pageBytes(group, "f16")))),
    ...await placeWeights(device, checkpoint, layout, stack, {}),
  ];
  for (const plan of [plans.prefill(room), plans.decode(room)]) {
    stack.use(await device.compile(plan, buffers));
  }
  const expected = plans.scratchBytes("cpu", device.info().threads);
  return { expected, taken: device.memory().scratch, config };
}

Deno.test("scratch that a load reckons with is at least what the compiled plans take, and little more where a model has many tokens", async () => {
  assert(models.length > 2);
  for (const path of models) {
    for (const exact of [false, true]) {
      for (const threads of [1, 9]) {
        const { expected, taken, config } = await measure(path, exact, threads);
        const what = `${path}, ${
          exact ? "exact" : "fast"
        }, ${threads} threads: ${taken} of ${expected} bytes`;
        assert(taken <= expected, what);
        // Of small models an op's activations are more than what it copies of them.
        const most = config.vocabularySize > 100_000 ? 1.1 : 3;
        assert(expected < most * taken + threads * CPU_THREAD_BYTES, what);
      }
    }
  }
});
