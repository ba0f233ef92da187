/** Forwards that begin before the draw that they follow: they change no text, and nothing is left of those that nobody wants. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import type { GenerateOptions, Model } from "../../mod.ts";
import type { Sequence } from "../../src/cache/sequence.ts";
import type { RowRequest } from "../../src/engine/part.ts";
import { loadWith } from "../../src/engine/load.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import { CANDIDATE_OUTPUTS, type Results } from "../../src/engine/results.ts";
import type { DecodeWork } from "../../src/engine/waiting.ts";
import { PAGE_TOKENS } from "../../src/schedule/groups.ts";
import { Adjustments } from "../../src/sample/adjustments.ts";
import { EXACT, generated, QUESTIONS, user } from "../support/calls.ts";
import { TINY } from "../support/models.ts";

/** The shipped model, whose forwards are short: on a thread of the library all the same, or all on the caller's. */
async function loaded(where: "library" | "caller"): Promise<LoadedModel> {
  const shortSeconds = where === "library" ? 0 : Infinity;
  return await loadWith(TINY, EXACT, { keptPrefixes: 0, shortSeconds });
}

const DECIDED: GenerateOptions[] = [
  { temperature: 1, topK: 0 },
  { temperature: 2.5, topK: 0 },
  { temperature: 3, topK: 0, minP: 0.001 },
  { temperature: 0 },
  { temperature: 2, topK: 1 },
  { temperature: 1, topK: 64, topP: 0.95, minP: 0.02 },
  { temperature: 1.5, topK: 256 },
  { temperature: 3, topK: 40, topP: 0.8 },
  { temperature: 2, topK: 200, minP: 0.01 },
  { temperature: 1.2, topK: 100, topP: 0.99, logitBias: { 20: 3, 300: -2 } },
  { temperature: 0, repetitionPenalty: 1.2 },
  { temperature: 1, topK: 64, presencePenalty: 0.5, logitBias: { 20: 3, 300: -2 } },
  { temperature: 1, topK: 64, repetitionPenalty: 1.1, presencePenalty: 0.3, frequencyPenalty: 0.1 },
  { temperature: 1.3, topK: 128, frequencyPenalty: -0.7, repetitionPenalty: 0.9, logitBias: { 20: 3 } },
];
const UNDECIDED: GenerateOptions[] = [
  { temperature: 1, topK: 0, topP: 0.9 },
  { temperature: 1, topK: 0, topP: 1, logitBias: { 20: 1 } },
  { temperature: 1, topK: 0, topP: 1, presencePenalty: 0.1 },
  { temperature: 1, topK: 300 },
  { temperature: 0, logprobs: 2 },
  { temperature: 0, speculative: true },
];

function promptOf(model: Model): number[] {
  return model.tokenizer.encode(model.renderChat(user("Tell me a short story.")), { special: true });
}

Deno.test("forwards that begin ahead are those that are asked for, and give the same tokens", async () => {
  await using model = await loaded("library");
  await using plain = await loaded("caller");
  const { counts } = model.engine.forward;
  const prompt = promptOf(model);
  for (const options of DECIDED) {
    let ahead = 0;
    for (const seed of [0, 7, 123456789, 2 ** 53 - 1]) {
      const all = { topP: 1, minP: 0, ...options, seed, maxTokens: 80, ignoreEos: true };
      const before = counts.ahead;
      assertEquals(await generated(model, prompt, all), await generated(plain, prompt, all));
      ahead += counts.ahead - before;
    }
    assert(ahead > 0, JSON.stringify(options));
  }
  assertEquals(counts.instead, 0, "every guess was right");
  assertEquals(plain.engine.forward.counts.ahead, 0);
});

Deno.test("nothing begins ahead where a draw may need more than candidates, or drafts do", async () => {
  await using model = await loaded("library");
  await using plain = await loaded("caller");
  const prompt = promptOf(model);
  for (const options of UNDECIDED) {
    const all = { ...options, seed: 5, maxTokens: 40, ignoreEos: true };
    assertEquals(await generated(model, prompt, all), await generated(plain, prompt, all));
    const { ahead, instead } = model.engine.forward.counts;
    assertEquals([ahead, instead], [0, 0], JSON.stringify(options));
  }
});

Deno.test("streams that come, end, are left and aborted beside each other give what they give alone", async () => {
  await using model = await loaded("library");
  await using plain = await loaded("caller");
  const { forward } = model.engine;
  const { used } = forward.kvBytes;
  let seed = 3;
  const random = (below: number) => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) % below;
  const reply = async (n: number) => {
    const options = DECIDED[n % DECIDED.length];
    const ids = model.tokenizer.encode(model.renderChat(user(QUESTIONS[n % QUESTIONS.length])), {
      special: true,
    });
    const all = { topP: 1, minP: 0, ...options, seed: n, maxTokens: 20 + random(60) };
    const expected = await generated(plain, ids, all);
    const most = random(3) === 0 ? random(expected.length) : Infinity;
    const isAborted = random(2) === 0;
    const controller = new AbortController();
    const found: number[] = [];
    try {
      for await (const id of model.generate(ids, { ...all, signal: controller.signal })) {
        found.push(id);
        if (found.length < most) continue;
        if (!isAborted) break;
        controller.abort();
      }
    } catch (error) {
      if (!controller.signal.aborted) throw error;
    }
    assertEquals(found, expected.slice(0, found.length));
    assert(found.length === expected.length || found.length >= most);
  };
  for (let round = 0; round < 6; round++) {
    const streams = Array.from({ length: 1 + round % 3 }, async (_, i) => {
      for (let n = 0; n < 6; n++) await reply(36 * round + 6 * i + n);
    });
    await Promise.all(streams);
    assertEquals(forward.kvBytes.used, used, "all pages came back");
  }
  assert(forward.counts.ahead > 0);
});

Deno.test("what has begun ahead ends with its reader, a prompt, a session that goes back, and the model", async () => {
  await using model = await loaded("library");
  await using plain = await loaded("caller");
  const prompt = promptOf(model);
  const options = { temperature: 0, maxTokens: 60, ignoreEos: true };
  const expected = await generated(plain, prompt, options);
  const other = model.tokenizer.encode("Once upon a time there was a fox. ".repeat(20));
  const logits = await plain.logits(other);
  for (let after = 1; after < 40; after += 3) {
    const stream = model.generate(prompt, options);
    const found: number[] = [];
    for (let i = 0; i < after; i++) found.push((await stream.next()).value!);
    // Another prompt is computed in between, and its pages may be those that were given back.
    const between = after % 2 === 0 ? model.logits(other) : stream.return().then(() => model.logits(other));
    assertEquals(await between, logits);
    for await (const id of stream) found.push(id);
    assertEquals(found, expected.slice(0, found.length));
  }
  using session = model.session();
  await session.append(user("Tell me a short story."));
  const drawn: number[] = [];
  for await (const id of session.generate(options)) if (drawn.push(id) === 30) break;
  assertEquals(drawn, expected.slice(0, 30));
  const rest: number[] = [];
  for await (const id of session.generate({ ...options, maxTokens: 30 })) rest.push(id);
  assertEquals(rest, expected.slice(30));
  const last = model.generate(prompt, options);
  for (let i = 0; i < 5; i++) await last.next();
});

Deno.test("what has begun ahead with a sequence that failed has ended before its pages are another's", async () => {
  await using model = await loaded("library");
  const { forward } = model.engine;
  const ids = model.tokenizer.encode("Once upon a time there was a fox. ".repeat(20)).slice(
    0,
    PAGE_TOKENS + 8,
  );
  const options = { temperature: 0, topK: 0, topP: 1, minP: 0, seed: 0 };
  const nothing = { repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, logitBias: new Map() };
  const draw = { options, adjustments: new Adjustments(nothing, []) };
  const prefilled = async (count: number) => {
    const sequence = forward.sequence();
    await forward.prefill(sequence, ids.slice(0, count), { outputs: 1, mask: CANDIDATE_OUTPUTS }, () => {});
    return sequence;
  };
  const best = (results: Results) => results.candidates(0).values.slice();
  const decode = (sequence: Sequence, more: Partial<DecodeWork>, request: RowRequest = { draw }) =>
    forward.speculate({
      sequence,
      mask: CANDIDATE_OUTPUTS,
      signal: undefined,
      rows: 1,
      build: () => ({ tokens: [ids[0]], requests: [request] }),
      take: () => 1,
      ...more,
    });
  const shared = await prefilled(PAGE_TOKENS + 8); // whose second page is copied when a fork goes on
  const alone = shared.fork();
  let expected: Float32Array | undefined, found: Float32Array | undefined;
  await decode(alone, { take: (results) => (expected = best(results), 1) }, {});
  alone.dispose();

  for (let round = 0; round < 20; round++) {
    const lasting = await prefilled(PAGE_TOKENS + 4);
    const failing = await prefilled(PAGE_TOKENS); // its next token is the first of a page
    const fork = shared.fork();
    let next: Promise<void> | undefined;
    const failed = decode(failing, {
      take: () => {
        throw new Error("enough");
      },
    });
    const first = decode(lasting, {
      goOn: () => {
        next = decode(lasting, {
          build: () => {
            const end = performance.now() + 10;
            while (performance.now() < end); // what has begun ahead has time to write
            return { tokens: [ids[1]], requests: [{}] };
          },
        });
      },
    });
    for (let turn = 0; turn < 100; turn++) await null; // the forward of the two has begun
    const late = decode(fork, { take: (results) => (found = best(results), 1) }, {});
    await assertRejects(() => failed, Error, "enough");
    await first;
    await Promise.all([late, next]);
    assertEquals(found, expected);
    for (const sequence of [lasting, failing, fork]) sequence.dispose();
  }
  shared.dispose();
});

Deno.test("forwards begin ahead in Workers and in several models beside each other, and change no text", async () => {
  await using plain = await loaded("caller");
  await using model = await loaded("library");
  const prompt = promptOf(model);
  const requests = DECIDED.map((options, seed) => ({ topP: 1, minP: 0, ...options, seed, maxTokens: 40 }));
  const answer = (worker: Worker) =>
    new Promise<MessageEvent["data"]>((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = (event) => reject(new Error(event.message));
    });
  const workers = [1, 2].map(() =>
    new Worker(new URL("./following_worker.ts", import.meta.url), { type: "module" })
  );
  await Promise.all(workers.map(answer));
  const answers = workers.map(answer);
  for (const worker of workers) worker.postMessage({ prompt, requests });
  const [own, expected] = await Promise.all(
    [model, plain].map(async (one) => {
      const all: number[][] = [];
      for (const options of requests) all.push(await generated(one, prompt, options));
      return all;
    }),
  );
  assertEquals(own, expected);
  let begun = model.engine.forward.counts.ahead;
  for (const { found, ahead, instead } of await Promise.all(answers)) {
    assertEquals(found, expected);
    assertEquals(instead, 0);
    begun += ahead;
  }
  assert(begun > 0);
  for (const worker of workers) worker.terminate();
});
