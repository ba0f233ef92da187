/** Known faults of other implementations that concern a running model, each with its stated values. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { load, MemoryLimit } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import { LOGITS_OUTPUT } from "../../src/engine/results.ts";
import { OUTPUT } from "../../src/schedule/text.ts";
import { generated } from "../support/calls.ts";
import { maxDifference, TINY } from "../support/models.ts";
import { nativeBytes } from "../support/process.ts";

const GREEDY = { temperature: 0, ignoreEos: true } as const;

/** A prompt of its own for each `seed`. */
function prompt(seed: number, length: number): number[] {
  return Array.from({ length }, (_, i) => 300 + (seed * 7919 + i * (31 + seed)) % 1100);
}

function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

Deno.test("R39: after a prompt beyond the window only a new suffix is computed, and a diverging one is as from scratch", async () => {
  const options = { device: "cpu", precision: "exact", kvCache: "f32", contextLength: 3200 } as const;
  await using model = await loadWith(TINY, options, {});
  await using fresh = await loadWith(TINY, options, { keptPrefixes: 0 });
  const settings = { ...GREEDY, maxTokens: 4 };
  const ids = prompt(1, 3000);
  await generated(model, ids, { ...GREEDY, maxTokens: 1 });

  const { counts } = model.engine.forward;
  const longer = [...ids, ...prompt(2, 20)];
  const before = counts.rows;
  const continued = await generated(model, longer, settings);
  assertEquals(counts.rows - before, 20 + 3, "the suffix and the generated tokens");
  assertEquals(continued, await generated(fresh, longer, settings));

  const diverging = [...ids.slice(0, 2600), ...prompt(3, 100)];
  assertEquals(await generated(model, diverging, settings), await generated(fresh, diverging, settings));

  // The logits too, bit for bit, and what a reply says of it.
  for (const [at, end] of [[2980, "unseen"], [2701, "unseen"], [2513, "unseen"], [3000, "unseen"]] as const) {
    const other = [...ids.slice(0, at), ...prompt(at, 20)];
    const { sequence, end: why } = model.engine.forward.prefixes.resume(other);
    assertEquals([sequence.length, why], [at, end]);
    const rows = model.engine.forward.counts.rows;
    let logits = new Float32Array(0);
    await model.engine.forward.prefill(
      sequence,
      other.slice(at),
      { outputs: 1, mask: LOGITS_OUTPUT },
      (results) => logits = results.all(OUTPUT.logits).slice(),
    );
    assertEquals(model.engine.forward.counts.rows - rows, 20);
    sequence.dispose();
    assertEquals(maxDifference(logits, await fresh.logits(other)), 0, `diverging at ${at}`);
  }
  const question = "What is 27 + 45? ".repeat(30);
  const messages = (last: string) => [{ role: "user" as const, content: question + last }];
  const first = await model.chat(messages("a"), { maxTokens: 1 });
  assertEquals([first.usage.cachedTokens > 0, first.usage.cacheEnd], [false, "unseen"]);
  const again = await model.chat(messages("a"), { maxTokens: 1 });
  assertEquals([again.usage.cachedTokens, again.usage.cacheEnd], [again.usage.promptTokens - 1, "prompt"]);
  const { usage } = await model.chat(messages("b"), { maxTokens: 1 });
  assert(usage.cachedTokens > 100 && usage.cachedTokens < usage.promptTokens - 1);
  assertEquals(usage.cacheEnd, "unseen");
});

Deno.test("R41: five hundred different prompts leave the cache within its cap and memory where it was", async () => {
  const memory = 64 * 2 ** 20;
  await using model = await load("tiny", { memory, contextLength: 512 });
  const before = nativeBytes();
  await generated(model, prompt(0, 300), { ...GREEDY, maxTokens: 2 });
  const { peak, kv, weights, repacked, activations } = model.memory();
  assert(kv + weights + repacked + activations <= memory);
  for (let i = 1; i <= 500; i++) {
    await generated(model, prompt(i, 20 + i % 60), { ...GREEDY, maxTokens: 2 });
    assert(model.memory().kvUsed <= kv);
  }
  assertEquals(model.memory().peak, peak);
  // The process too: what was reserved at load is touched, and there is nothing beside it.
  const growth = nativeBytes() - before;
  assert(growth < kv + activations + memory / 10, `the process grew by ${growth} bytes`);
});

Deno.test("R42: twelve prompts of 5 to 3000 tokens that join at different steps answer as each does alone", async () => {
  const lengths = [5, 3000, 17, 64, 1500, 33, 700, 31, 256, 2, 1023, 90];
  for (const precision of ["exact", "fast"] as const) {
    const options = { device: "cpu", precision, contextLength: 3200 } as const;
    await using alone = await loadWith(TINY, options, { keptPrefixes: 0 });
    await using model = await load("tiny", options);
    const settings = { ...GREEDY, maxTokens: 12 };
    const expected: number[][] = [];
    for (const [i, length] of lengths.entries()) {
      expected.push(await generated(alone, prompt(i, length), settings));
    }
    const found = await Promise.all(lengths.map(async (length, i) => {
      await pause(i * 11 % 60);
      return await generated(model, prompt(i, length), settings);
    }));
    assertEquals(found, expected, precision);
  }
});

Deno.test("R67: a call aborted in queue, prefill or decode frees its place within a second and disturbs no other", async () => {
  await using model = await loadWith(TINY, { contextLength: 2048, precision: "exact" }, { keptPrefixes: 0 });
  const settings = { ...GREEDY, maxTokens: 150 };
  const expected = await generated(model, prompt(1, 40), settings);
  const used = model.memory().kvUsed;
  const undisturbed = generated(model, prompt(1, 40), settings);
  const reason = new Error("left");
  const stages: Record<string, (controller: AbortController) => Promise<unknown>> = {
    queue: (controller) => {
      const before = model.logits(prompt(2, 1900));
      const queued = model.logits(prompt(3, 1900), { signal: controller.signal });
      controller.abort(reason);
      return Promise.race([before, queued]); // the queued call does not wait for its turn
    },
    prefill: (controller) => {
      setTimeout(() => controller.abort(reason), 2);
      return model.logits(prompt(4, 2000), { signal: controller.signal });
    },
    decode: async (controller) => {
      let count = 0;
      const { signal } = controller;
      for await (const _ of model.generate(prompt(5, 30), { ...GREEDY, maxTokens: 1500, signal })) {
        if (++count === 3) controller.abort(reason);
      }
    },
  };
  for (const [stage, call] of Object.entries(stages)) {
    const controller = new AbortController();
    let aborted = 0;
    controller.signal.addEventListener("abort", () => aborted = performance.now());
    assertEquals(await call(controller).catch((error) => error), reason, stage);
    assert(performance.now() - aborted < 1000, stage);
  }
  assertEquals(await undisturbed, expected);
  assertEquals(await generated(model, prompt(1, 40), settings), expected);
  assertEquals(model.memory().kvUsed, used);
});

Deno.test("R69: neither a load nor a longer context may take more than its memory, and the refusal has the numbers", async () => {
  const memory = 40 * 2 ** 20;
  const error = await assertRejects(() => load("tiny", { memory, contextLength: 100_000 }), MemoryLimit);
  assertEquals(error.availableBytes, memory);
  assert(error.neededBytes > memory);
  await using model = await load("tiny", { memory, contextLength: 2048 });
  const { peak, mapped } = model.memory();
  assert(peak + mapped <= memory, `${peak} + ${mapped}`);
  const loaded = await load("tiny", { memory: error.neededBytes, contextLength: 100_000 });
  await loaded[Symbol.asyncDispose](); // what it asked for is enough
});
