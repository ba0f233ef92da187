/**
 * Real weights: Gemma 3 270M (base) in Q4_K_M. In exact mode the model says what a float32 reference says of the same
 * weights. llama.cpp also rounds activations to 8 bits and is compared as far as that lets it.
 */
import { assert, assertEquals } from "@std/assert";
import { load } from "../../mod.ts";
import { generated } from "../support/calls.ts";
import { divergence, gemma3Model, lossOf } from "../support/models.ts";
import golden from "../fixtures/gemma3_270m/golden.json" with { type: "json" };

const path = gemma3Model();
const ignore = path === null;
const EXACT = { device: "cpu", precision: "exact", kvCache: "f32", contextLength: 1024 } as const;
const GREEDY = { temperature: 0, ignoreEos: true } as const;
/** A step at which the first two tokens are nearer than this may go either way. */
const NEAR_TIE = 0.05;
/** Most tokens compared: more only take time. */
const STEPS = 24;

Deno.test("Gemma 3 270M: the vocabulary in the file gives the prompts' ids", { ignore }, async () => {
  await using model = await load(path!, EXACT);
  const text = await Deno.readTextFile(new URL("../fixtures/gemma3_270m/text.txt", import.meta.url));
  assertEquals([2, ...model.tokenizer.encode(text)], golden.text.ids);
  for (const { prompt, promptIds } of golden.outputs) {
    assertEquals([2, ...model.tokenizer.encode(prompt)], promptIds);
  }
  assertEquals(model.warnings, []);
});

Deno.test(
  "Gemma 3 270M continues as the float32 reference until a near-tie, and sensibly",
  { ignore },
  async () => {
    await using model = await load(path!, EXACT);
    for (const { prompt, promptIds, greedy, margins, first } of golden.outputs) {
      const logits = await model.logits(promptIds);
      first.ids.forEach((id, i) => {
        const difference = Math.abs(logits[id] - first.logits[i]);
        assert(difference <= 2e-3, `${prompt}: the logit of ${id} differs by ${difference}`);
      });
      const tie = margins.findIndex((margin) => margin < NEAR_TIE);
      const certain = Math.min(tie < 0 ? greedy.length : tie, STEPS);
      assertEquals(
        await generated(model, promptIds, { ...GREEDY, maxTokens: certain }),
        greedy.slice(0, certain),
        prompt,
      );
    }
    const { text } = await model.complete("The capital of France is", { maxTokens: 8, temperature: 0 });
    assertEquals(text, " the capital of the country of France.");
  },
);

Deno.test(
  "Gemma 3 270M continues as llama.cpp until a near-tie, or until that engine parts from the float32 reference",
  { ignore },
  async () => {
    await using model = await load(path!, EXACT);
    for (const { prompt, promptIds, greedy, margins, llamaCpp } of golden.outputs) {
      const parted = greedy.findIndex((id, i) => id !== llamaCpp[i] || margins[i] < NEAR_TIE);
      const common = Math.min(parted < 0 ? greedy.length : parted, STEPS);
      const ids = await generated(model, promptIds, { ...GREEDY, maxTokens: common });
      assertEquals(ids, llamaCpp.slice(0, common), prompt);
    }
  },
);

Deno.test("Gemma 3 270M: the text's perplexity is the float32 reference's, in fast mode within 0.5%", {
  ignore,
}, async () => {
  const { ids, nll } = golden.text;
  const loss = async (precision: "exact" | "fast") => {
    await using model = await load(path!, { ...EXACT, precision });
    return lossOf(await model.logits(ids, { last: ids.length }), ids, model.config.vocabularySize);
  };
  const exact = await loss("exact");
  assert(Math.abs(exact - nll) < 1e-4, `exact: ${exact}, reference ${nll}`);
  const ratio = Math.exp(await loss("fast") - nll);
  assert(Math.abs(ratio - 1) < 0.005, `fast: ${ratio} of the reference's perplexity`);
});

Deno.test(
  "R47: Gemma 3 270M with 8-bit keys and values diverges from f16 by less than 0.01 nats over 2,000 tokens",
  {
    ignore,
  },
  async () => {
    const options = { ...EXACT, contextLength: 2000 };
    await using half = await load(path!, { ...options, kvCache: "f16" });
    await using coded = await load(path!, { ...options, kvCache: "q8" });
    const text = await Deno.readTextFile(new URL("../../LICENSE", import.meta.url));
    const ids = [2, ...half.tokenizer.encode(text)].slice(0, 2000);
    assertEquals(ids.length, 2000);
    const [parts, last] = [8, 24];
    let sum = 0;
    for (let part = 1; part <= parts; part++) { // the last 24 positions of each eighth; a part resumes from the one before
      const begun = ids.slice(0, ids.length * part / parts);
      const [p, q] = [await half.logits(begun, { last }), await coded.logits(begun, { last })];
      sum += divergence(p, q, half.config.vocabularySize);
    }
    assert(sum > 0 && sum / parts < 0.01, `${sum / parts}`);
  },
);
