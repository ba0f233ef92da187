/** Whole models on the CPU device in exact mode with an f32 cache, against the golden values of a reference. */
import { assert, assertEquals } from "@std/assert";
import { type Internals, loadWith } from "../../src/engine/load.ts";
import { LOGITS_OUTPUT } from "../../src/engine/results.ts";
import { OUTPUT } from "../../src/schedule/text.ts";
import { EXACT } from "../support/calls.ts";
import { checkLogits, checkStates } from "../support/golden.ts";
import { fixtureModel, GOLDEN_MODELS, maxDifference, readGolden } from "../support/models.ts";

/** Its best two tokens are once too near each other for a comparison of tokens. */
const NEAR_DRAWS = ["e2b-mm-clipped-mlx-4bit"];

async function open(name: string, internals: Internals = {}) {
  const folder = fixtureModel(name);
  assert(folder, `Fixture ${name} is missing.`);
  const golden = await readGolden(folder);
  const prompts = golden.prompts.filter(({ media }) => !media?.length);
  return { model: await loadWith(folder, EXACT, internals), golden, prompts };
}

for (const name of GOLDEN_MODELS) {
  const ignore = fixtureModel(name) === null;
  Deno.test(`${name} meets the golden logits at the last eight positions`, { ignore }, async () => {
    const { model, golden, prompts } = await open(name);
    await using _ = model;
    for (const { name: prompt, input_ids: ids } of prompts) {
      const expected = golden.tensors.get(`${prompt}.logits_last8`)!.data;
      const logits = await model.logits(ids, { last: 8 });
      checkLogits(logits, expected, model.config.vocabularySize, prompt);
    }
  });

  Deno.test(`${name} meets the golden hidden state of every layer`, { ignore }, async () => {
    const { model, golden, prompts } = await open(name);
    await using _ = model;
    for (const { name: prompt, input_ids: ids } of prompts) {
      checkStates(await model.hidden(ids), golden.tensors.get(`${prompt}.hidden_states`)!, prompt);
    }
  });

  const draws = NEAR_DRAWS.includes(name);
  Deno.test(
    `${name} continues greedily as the golden tokens, past its window`,
    { ignore: ignore || draws },
    async () => {
      const { model, prompts } = await open(name);
      await using _ = model;
      for (const { input_ids: ids, greedy } of prompts) {
        const options = { maxTokens: greedy.length, temperature: 0, ignoreEos: true };
        assertEquals(await Array.fromAsync(model.generate(ids, options)), greedy);
      }
    },
  );
}

for (
  const name of ["e2b", "e4b-mlx-mixed", "26b-a4b-mlx-4bit", "26b-a4b-gguf-q4_0", "kq-gguf-q4_k_m", "gemma3"]
) {
  Deno.test(`${name} gives the same logits bit for bit in chunks of 1, 7, 16 and 512 rows`, async () => {
    let first: Float32Array | undefined;
    for (const chunkRows of [512, 16, 7, 1]) {
      const { model, prompts } = await open(name, { chunkRows });
      await using _ = model;
      const logits = await model.logits(prompts.at(-1)!.input_ids, { last: 20 });
      first ??= logits;
      assertEquals(maxDifference(logits, first), 0, `chunks of ${chunkRows}`);
    }
  });

  Deno.test(`${name} in fast mode gives the same logits bit for bit whatever the chunks`, async () => {
    let first: Float32Array | undefined;
    for (const chunkRows of [512, 64, 16, 7, 1]) {
      await using model = await loadWith(fixtureModel(name)!, { device: "cpu", precision: "fast" }, {
        chunkRows,
      });
      const { prompts } = await readGolden(fixtureModel(name)!);
      const logits = await model.logits(prompts.at(-1)!.input_ids, { last: 20 });
      first ??= logits;
      assertEquals(maxDifference(logits, first), 0, `chunks of ${chunkRows}`);
    }
  });

  Deno.test(`${name} decodes token by token to the logits of the whole prompt bit for bit`, async () => {
    const { model, prompts } = await open(name);
    await using _ = model;
    const { input_ids: ids } = prompts.at(-1)!;
    const V = model.config.vocabularySize;
    const whole = await model.logits(ids, { last: ids.length });
    const { forward } = model.engine;
    const sequence = forward.sequence();
    for (const [position, id] of ids.entries()) {
      await forward.decode(sequence, id, {}, LOGITS_OUTPUT, undefined, (results) => {
        const expected = whole.subarray(position * V, (position + 1) * V);
        assertEquals(maxDifference(results.all(OUTPUT.logits), expected), 0, `position ${position}`);
      });
    }
    sequence.dispose();
  });

  Deno.test(`${name}: the elementary schedule and one without shared activations agree with the fused one`, async () => {
    const results: Float32Array[] = [];
    for (const internals of [{}, { reuse: false }, { fuse: false }, { checkFinite: true }]) {
      const { model, prompts } = await open(name, internals);
      await using _ = model;
      results.push(await model.logits(prompts.at(-1)!.input_ids, { last: 16 }));
    }
    const [fused, unshared, elementary, checked] = results;
    assertEquals(maxDifference(fused, unshared), 0);
    assertEquals(maxDifference(fused, checked), 0);
    assert(maxDifference(fused, elementary) < 1e-3, `difference ${maxDifference(fused, elementary)}`);
  });
}
