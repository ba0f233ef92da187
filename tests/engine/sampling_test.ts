/** Draws through a whole model: seeds, distributions, penalties, log-probabilities. */
import { assert, assertEquals } from "@std/assert";
import { load } from "../../mod.ts";
import { sampleRow } from "../../src/sample/sampler.ts";
import { EXACT, generated, QUESTIONS, user } from "../support/calls.ts";

Deno.test("the same seed gives the same text, and another seed in time another", async () => {
  await using model = await load("tiny");
  const story = (seed?: number) =>
    model.chat(user("Tell me a short story."), { seed, temperature: 1.5, topK: 0, topP: 1 });
  const first = await story(7);
  assertEquals((await story(7)).text, first.text);
  const texts = new Set<string>();
  for (let seed = 0; seed < 5; seed++) texts.add((await story(seed)).text);
  assert(texts.size > 1);
  const random = await story();
  assertEquals((await story(random.receipt.seed)).text, random.text, "the receipt's seed replays the reply");
});

Deno.test("one seed gives one text through chat, stream, batch, generate and a session, alone or together", async () => {
  await using model = await load("tiny");
  const question = user("Tell me a story.");
  const options = { temperature: 1, maxTokens: 40 };
  for (const seed of [0, 7, 2 ** 53 - 1]) {
    const { text, receipt } = await model.chat(question, { ...options, seed });
    let streamed = "";
    for await (const part of model.stream(question, { ...options, seed })) {
      if (part.type === "text") streamed += part.text;
    }
    assertEquals(streamed, text);
    const others = QUESTIONS.map((other) => user(other));
    const batch = await model.batch([...others, { messages: question, seed }, ...others], options);
    assertEquals(batch[others.length].text, text);
    const ids = await generated(model, receipt.promptIds, { ...options, seed: receipt.seed });
    assertEquals(model.tokenizer.decode(ids, { skipSpecial: true }), text);
    using session = model.session();
    await session.append(question);
    const drawn: number[] = [];
    for await (const id of session.generate({ ...options, seed })) drawn.push(id);
    assertEquals(drawn, ids);
  }
});

Deno.test("draws of many seeds follow the model's own probabilities, with and without temperature and top-k", async () => {
  await using model = await load("tiny", EXACT);
  const prompt = model.renderChat(user("Tell me a story.")) + "One";
  const ids = model.tokenizer.encode(prompt, { special: true });
  const logits = await model.logits(ids);
  const order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a]);
  const DRAWS = 500;
  for (const { temperature, topK } of [{ temperature: 1, topK: 0 }, { temperature: 1.7, topK: 4 }]) {
    const kept = topK === 0 ? order : order.slice(0, topK);
    const weights = kept.map((id) => Math.exp((logits[id] - logits[order[0]]) / temperature));
    const total = weights.reduce((a, b) => a + b);
    const counts = new Map<number, number>();
    for (let seed = 0; seed < DRAWS; seed++) {
      const [id] = await generated(model, ids, { temperature, topK, topP: 1, seed, maxTokens: 1 });
      counts.set(id, (counts.get(id) ?? 0) + 1);
    }
    // Pearson's statistic over tokens expected at least five times, the rest together.
    let statistic = 0, cells = 0, rest = DRAWS, restExpected = DRAWS;
    kept.forEach((id, i) => {
      const expected = DRAWS * weights[i] / total;
      if (expected < 5) return;
      const count = counts.get(id) ?? 0;
      statistic += (count - expected) ** 2 / expected;
      cells++;
      rest -= count;
      restExpected -= expected;
    });
    if (restExpected >= 5) statistic += (rest - restExpected) ** 2 / restExpected;
    assert(cells >= 4, `${cells} cells`);
    assert(rest >= 0 && (restExpected > 0.5 || rest <= 5), `${rest} draws beyond the likely tokens`);
    // A chi-square variable of n degrees of freedom passes n + 5 √(2n) about once in 10^4 times.
    assert(statistic < cells + 5 * Math.sqrt(2 * cells), `statistic ${statistic} over ${cells} cells`);
  }
});

Deno.test("generation draws what the definition draws from the full logits, with any truncation", async () => {
  await using model = await load("tiny", EXACT);
  const ids = (await model.chat(user("Tell me a short story."), { maxTokens: 1 })).receipt.promptIds;
  const truncations = [{}, { topP: 0.9 }, { topK: 20 }, { topK: 300, topP: 0.99 }, { minP: 0.1 }];
  for (const truncation of truncations) {
    const options = { temperature: 1.3, topK: 0, topP: 1, minP: 0, seed: 99, ...truncation };
    const expected: number[] = [];
    const context = [...ids];
    for (let i = 0; i < 12; i++) {
      const id = sampleRow(await model.logits(context), options, context.length);
      expected.push(id);
      context.push(id);
    }
    assertEquals(await generated(model, ids, { ...options, maxTokens: 12, ignoreEos: true }), expected);
  }
});

Deno.test("penalties and biases change what follows as their formulas say", async () => {
  await using model = await load("tiny", EXACT);
  const ids = (await model.chat(user("Count from 3 to 9."), { maxTokens: 1 })).receipt.promptIds;
  const options = { temperature: 0.9, topK: 0, topP: 1, minP: 0, seed: 5 };
  const penalties = {
    repetitionPenalty: 1.3,
    presencePenalty: 0.4,
    frequencyPenalty: 0.2,
    logitBias: { 300: 3, 20: -2 },
  };
  const expected: number[] = [];
  for (let i = 0; i < 10; i++) {
    const context = [...ids, ...expected];
    const logits = await model.logits(context);
    for (const id of new Set([...context, 300, 20])) {
      const f = Math.fround;
      const m = f(context.includes(id) ? 1 / 1.3 : 1);
      const count = expected.filter((other) => other === id).length;
      const add = ({ 300: 3, 20: -2 }[id] ?? 0) - (count > 0 ? 0.4 + 0.2 * count : 0);
      logits[id] = f(logits[id] > 0 ? f(logits[id] * m) : f(logits[id] / m)) + f(add);
    }
    expected.push(sampleRow(logits, options, context.length));
  }
  assertEquals(
    await generated(model, ids, { ...options, ...penalties, maxTokens: 10, ignoreEos: true }),
    expected,
  );
});

Deno.test("log-probabilities are those of the raw soft-capped logits, penalties or not", async () => {
  await using model = await load("tiny", EXACT);
  const { receipt: { promptIds } } = await model.chat(user("What is 27 + 45?"), { maxTokens: 1 });
  for (const penalties of [{}, { repetitionPenalty: 1.5, logitBias: { 290: -3 } }]) {
    const reply = await model.chat(user("What is 27 + 45?"), {
      temperature: 0,
      logprobs: 3,
      maxTokens: 2,
      ...penalties,
    });
    assertEquals(reply.logprobs?.length, 2);
    const context = [...promptIds];
    for (const { id, logprob, top } of reply.logprobs!) {
      const logits = await model.logits(context);
      const most = Math.max(...logits);
      const logSumExp = Math.log(logits.reduce((sum, value) => sum + Math.exp(value - most), 0)) + most;
      assert(Math.abs(logprob - (logits[id] - logSumExp)) < 1e-4);
      assert(top.length === 3 && top[0].logprob >= top[1].logprob && top[0].id === logits.indexOf(most));
      context.push(id);
    }
  }
  assertEquals((await model.chat(user("Hi"), { maxTokens: 1 })).logprobs, undefined);
});
