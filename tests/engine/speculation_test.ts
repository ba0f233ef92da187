/** Speculation: the same tokens as without it, whatever the drafts are, and counts that tell how they fared. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import {
  type ChatOptions,
  CheckpointError,
  InvalidArgument,
  load,
  type LoadOptions,
  MemoryLimit,
  type Message,
  type Tool,
} from "../../mod.ts";
import { openCheckpoint } from "../../src/checkpoint/open.ts";
import { Drafter } from "../../src/engine/drafter.ts";
import { Forward } from "../../src/engine/forward.ts";
import { loadWith } from "../../src/engine/load.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import { STATE_OUTPUT } from "../../src/engine/results.ts";
import { EXACT, generated } from "../support/calls.ts";
import { fixtureModel, TINY, TINY_DRAFTER } from "../support/models.ts";

const WITH_DRAFTER = { ...EXACT, drafter: TINY_DRAFTER } as const;

interface Case {
  messages: Message[];
  input_ids: number[];
  output_ids: number[];
  max_new_tokens: number;
  target_passes: number;
}

const CASES: Case[] = JSON.parse(
  await Deno.readTextFile(new URL("../fixtures/tiny/drafter_rejections.json", import.meta.url)),
);

/** Records the rows that each forward of decode work takes, and how many of them stay. */
function record(rounds: { length: number; drafts: readonly number[]; kept: number }[]): Disposable {
  const { speculate } = Forward.prototype;
  Forward.prototype.speculate = async function (work) {
    let drafts: readonly number[] = [];
    const { length } = work.sequence;
    await speculate.call(this, {
      ...work,
      build: (drafted) => {
        const built = work.build(drafted);
        drafts = built.tokens.slice(1);
        return built;
      },
      take: (results) => {
        const kept = work.take(results);
        rounds.push({ length, drafts, kept });
        return kept;
      },
    });
  };
  return { [Symbol.dispose]: () => void (Forward.prototype.speculate = speculate) };
}

Deno.test("prompts whose drafts are often wrong give the golden tokens in about as many forwards as the reference needs", async () => {
  await using model = await load("tiny", WITH_DRAFTER);
  let forwards = 0, golden = 0;
  for (const { messages, output_ids, max_new_tokens, target_passes } of CASES) {
    const options = { temperature: 0, maxTokens: max_new_tokens, speculative: 4 };
    const reply = await model.chat(messages, options);
    assertEquals(await generated(model, reply.receipt.promptIds, options), output_ids);
    const { speculation, usage } = reply;
    assertEquals(usage.completionTokens, output_ids.length);
    assertEquals(speculation!.drafter, "network");
    assert(speculation!.accepted <= speculation!.drafted && speculation!.drafted > 0);
    forwards += speculation!.forwards;
    golden += target_passes;
  }
  // R63: the reference sees keys of rejected drafts now and then, so that a few drafts differ.
  assert(Math.abs(forwards - golden) <= 0.05 * golden, `${forwards} forwards, the reference ${golden}`);
});

Deno.test("R62: text with a drafter equals text without, for 1, 2 and 4 sequences of unequal length at once", async () => {
  await using plain = await loadWith(TINY, EXACT, { keptPrefixes: 0 });
  await using model = await loadWith(TINY, WITH_DRAFTER, { keptPrefixes: 0 });
  const prompts = CASES.map((
    { input_ids },
    i,
  ) => [...input_ids.slice(0, 1), ...Array(i * 40).fill(300), ...input_ids]);
  for (const settings of [{ temperature: 0 }, { temperature: 0.8, topK: 30, seed: 3 }]) {
    const options = { ...settings, maxTokens: 40, ignoreEos: true };
    const expected = [];
    for (const ids of prompts) expected.push(await generated(plain, ids, options));
    for (const count of [1, 2, 4]) {
      const drafted = { ...options, speculative: 4 };
      const found = await Promise.all(prompts.slice(0, count).map((ids) => generated(model, ids, drafted)));
      assertEquals(found, expected.slice(0, count));
    }
  }
});

Deno.test("at any temperature and with any truncation, penalty or draft length the tokens are those of plain decoding", async () => {
  await using model = await load("tiny", WITH_DRAFTER);
  const settings = [
    { temperature: 0.3 },
    { temperature: 1, topK: 0, topP: 1 },
    { temperature: 1.6, topK: 0, topP: 0.9 },
    { temperature: 1, minP: 0.05, topK: 0 },
    { temperature: 0.9, repetitionPenalty: 1.4, presencePenalty: 0.5, frequencyPenalty: 0.3 },
    { temperature: 0, repetitionPenalty: 1.3, logitBias: { 300: 2 } },
  ];
  for (const [i, each] of settings.entries()) {
    const ids = CASES[i % 2].input_ids;
    const options = { ...each, seed: 1000 + i, maxTokens: 30, ignoreEos: true };
    const expected = await generated(model, ids, { ...options, speculative: false });
    for (const speculative of [true, 1, 3, 8]) {
      assertEquals(await generated(model, ids, { ...options, speculative }), expected, JSON.stringify(each));
    }
  }
});

Deno.test("R19: streams of calls, thoughts and text have the same parts with any drafts", async () => {
  await using model = await load("tiny", WITH_DRAFTER);
  const { tools }: { tools: Tool[] } = JSON.parse(
    await Deno.readTextFile(new URL("../fixtures/tiny/tool_call.json", import.meta.url)),
  );
  const requests: [string, ChatOptions][] = [
    ["What is the weather in Paris?", { tools }],
    ["What is 58 + 67?", { thinking: true }],
    ["Show me a wave emoji.", {}],
  ];
  for (const [content, options] of requests) {
    const partsWith = async (speculative: boolean | number) => {
      const messages = [{ role: "user" as const, content }];
      const parts = await Array.fromAsync(
        model.stream(messages, { ...options, temperature: 0, speculative }),
      );
      const last = parts.pop()!;
      assert(last.type === "done");
      return { parts, calls: last.reply.toolCalls, accepted: last.reply.speculation?.accepted };
    };
    const plain = await partsWith(false);
    if (options.tools) {
      assertEquals(plain.calls, [{ id: "call_0", name: "get_weather", arguments: { city: "Paris" } }]);
      assertEquals(plain.parts.map((part) => part.type === "toolCall" ? part.index : part.type), [0]);
    }
    for (const drafts of [1, 4, 8]) {
      const { parts, calls, accepted } = await partsWith(drafts);
      assertEquals([parts, calls], [plain.parts, plain.calls], `${content} with ${drafts} drafts`);
      assert(accepted! > 0);
    }
  }
});

Deno.test("log-probabilities do not change with drafts", async () => {
  await using model = await load("tiny", WITH_DRAFTER);
  const { messages } = CASES[0];
  const options = { temperature: 0, logprobs: 2, maxTokens: 20 };
  const drafted = await model.chat(messages, { ...options, speculative: 4 });
  const plain = await model.chat(messages, { ...options, speculative: false });
  assertEquals(drafted.logprobs, plain.logprobs);
  assertEquals([plain.speculation, drafted.speculation?.drafter], [undefined, "network"]);
  assert(drafted.speculation!.accepted > 0);
});

Deno.test("the third token of many seeds is distributed as the model's own probabilities say", async () => {
  await using model = await load("tiny", WITH_DRAFTER);
  const ids = model.tokenizer.encode(
    model.renderChat([{ role: "user", content: "Tell me a story." }]) + "One foggy day,",
    {
      special: true,
    },
  );
  const T = 1.7;
  // Exact probabilities of the third token together with any likely first and second ones.
  const softmax = (logits: Float32Array) => {
    const most = logits.reduce((a, b) => Math.max(a, b));
    const weights = Array.from(logits, (logit) => Math.exp((logit - most) / T));
    const sum = weights.reduce((a, b) => a + b);
    return weights.map((weight) => weight / sum);
  };
  const expected = new Map<number, number>();
  const visited = new Set<string>();
  const visit = async (context: number[], share: number, depth: number) => {
    visited.add(context.slice(ids.length).join());
    const p = softmax(await model.logits(context));
    for (const [id, probability] of p.entries()) {
      if (depth === 2) expected.set(id, (expected.get(id) ?? 0) + share * probability);
      else if (share * probability > 3e-3) await visit([...context, id], share * probability, depth + 1);
    }
  };
  await visit(ids, 1, 0);
  const DRAWS = 400;
  const counts = new Map<number, number>();
  let accepted = 0;
  for (let seed = 0; seed < DRAWS; seed++) {
    const options = { temperature: T, topK: 0, topP: 1, seed, maxTokens: 3, ignoreEos: true, speculative: 2 };
    const [first, second, third] = await generated(model, ids, options);
    if (visited.has(`${first},${second}`)) counts.set(third, (counts.get(third) ?? 0) + 1);
    if (seed < 20) {
      const { ignoreEos: _, ...rest } = options;
      const messages = [{ role: "user" as const, content: "Tell me a story." }];
      accepted += (await model.chat(messages, { ...rest, maxTokens: 6 })).speculation!.accepted;
    }
  }
  let statistic = 0, cells = 0;
  for (const [id, probability] of expected) {
    if (DRAWS * probability < 5) continue;
    statistic += ((counts.get(id) ?? 0) - DRAWS * probability) ** 2 / (DRAWS * probability);
    cells++;
  }
  assert(accepted > 0, "some drafts were right");
  assert(cells >= 3 && statistic < cells + 5 * Math.sqrt(2 * cells), `${statistic} over ${cells} cells`);
});

Deno.test("after rejections the cache is as long as the committed tokens, and drafts are those of a fresh context", async () => {
  await using model = await loadWith(TINY, WITH_DRAFTER, { keptPrefixes: 0 });
  const { forward, weights } = model.engine;
  await using fresh = await Drafter.open(TINY_DRAFTER, {
    config: model.config,
    weights,
    shared: forward.shared,
  }, {
    pages: 64,
  });
  const rounds: Parameters<typeof record>[0] = [];
  const { input_ids: prompt } = CASES[1];
  const ids = [...prompt];
  {
    using _ = record(rounds);
    using session = model.session();
    await session.append(prompt);
    for await (const id of session.generate({ temperature: 0, maxTokens: 48, speculative: 4 })) {
      ids.push(id);
      assertEquals(session.ids, ids);
    }
  }
  let rejected = 0;
  for (const [i, { length, drafts, kept }] of rounds.entries()) {
    if (i > 0) assertEquals(length, rounds[i - 1].length + rounds[i - 1].kept);
    if (kept <= drafts.length) rejected++;
    if (drafts.length === 0) continue;
    const sequence = forward.sequence();
    let state: Float32Array<ArrayBuffer>;
    await forward.prefill(sequence, ids.slice(0, length), { outputs: 1, mask: STATE_OUTPUT }, (results) => {
      state = results.state(0);
    });
    fresh.begin(state!);
    const expected: number[] = [];
    for (const _ of drafts) {
      const token = expected.at(-1) ?? ids[length];
      expected.push((await fresh.step([{ token, length, tables: sequence.tables }])).ids[0]);
    }
    sequence.dispose();
    assertEquals(drafts, expected, `round ${i}`);
  }
  assert(rejected > 3 && rounds.length > rejected, `${rejected} of ${rounds.length}`);
});

Deno.test("a reply that is left in the middle of accepted drafts goes on as if they had not been computed", async () => {
  await using model = await loadWith(TINY, WITH_DRAFTER, { keptPrefixes: 0 });
  const options = { temperature: 0, ignoreEos: true } as const;
  const expected = await generated(model, CASES[1].input_ids, {
    ...options,
    maxTokens: 24,
    speculative: false,
  });
  for (const stopAt of [1, 2, 3, 5, 6, 9]) {
    using session = model.session();
    await session.append(CASES[1].input_ids);
    const found: number[] = [];
    for await (const id of session.generate({ ...options, maxTokens: 20, speculative: 4 })) {
      found.push(id);
      if (found.length === stopAt) break;
    }
    for await (const id of session.generate({ ...options, maxTokens: 24 - stopAt })) found.push(id);
    assertEquals(found, expected);
  }
});

Deno.test("without a drafter the text's own repetitions are looked up, and change no token", async () => {
  await using model = await loadWith(TINY, EXACT, { keptPrefixes: 0 });
  const ids = [2, ...Array.from({ length: 120 }, (_, i) => 300 + i % 12)];
  for (const options of [{ temperature: 0 }, { temperature: 1, seed: 5 }]) {
    const all = { ...options, maxTokens: 40, ignoreEos: true };
    const expected = await generated(model, ids, all);
    for (const speculative of [true, 5]) {
      assertEquals(await generated(model, ids, { ...all, speculative }), expected);
    }
  }
  const reply = await model.complete("one two", {
    temperature: 0,
    maxTokens: 24,
    speculative: 4,
    logitBias: { 300: 1e6 }, // the same token again and again
  });
  assertEquals(reply.speculation?.drafter, "lookup");
  assert(reply.speculation!.accepted > 0 && reply.speculation!.forwards < reply.usage.completionTokens);
  assertEquals((await model.complete("one", { maxTokens: 2 })).speculation, undefined);
});

Deno.test("where many sequences draft at once none waits for another's drafts", async () => {
  // Two tokens in random order: what followed before is always found, and right about every second time.
  const all = { temperature: 1, maxTokens: 30, ignoreEos: true, logitBias: { 300: 1e3, 301: 1e3 } };
  const prompts = Array.from(
    { length: 8 },
    (_, i) => [2, ...Array.from({ length: 20 }, (_, j) => 300 + (i + j) % 2)],
  );
  const run = async (options: { drafter?: string }, speculative: boolean | number) => {
    await using model = await loadWith(TINY, { ...EXACT, ...options }, { keptPrefixes: 0 });
    const replies = await Promise.all(
      prompts.map((ids, i) => generated(model, ids, { ...all, seed: i, speculative })),
    );
    return { replies, forwards: model.engine.forward.counts.forwards };
  };
  const plain = await run({}, false);
  for (const options of [{}, { drafter: TINY_DRAFTER }]) {
    for (const speculative of [true, 8]) {
      const { replies, forwards } = await run(options, speculative);
      assertEquals(replies, plain.replies);
      assert(forwards <= plain.forwards, `${forwards} forwards instead of ${plain.forwards}`);
    }
  }
});

Deno.test("R67: an abort during drafts or their check ends that reply alone, and frees its cache", async () => {
  await using model = await loadWith(TINY, { ...WITH_DRAFTER, contextLength: 1024 }, { keptPrefixes: 0 });
  const options = { temperature: 0, maxTokens: 60, ignoreEos: true };
  const expected = await generated(model, CASES[1].input_ids, options);
  const reason = new Error("left");
  for (let at = 1; at < 30; at += 5) {
    const controller = new AbortController();
    const { step } = Drafter.prototype;
    let steps = 0;
    Drafter.prototype.step = function (...args) {
      if (++steps === at) queueMicrotask(() => controller.abort(reason));
      return step.apply(this, args);
    };
    try {
      const [left, stayed] = await Promise.allSettled([
        generated(model, CASES[3].input_ids, {
          ...options,
          speculative: 4, // in every forward: as many as pay can be none
          maxTokens: 900,
          signal: controller.signal,
        }),
        generated(model, CASES[1].input_ids, options),
      ]);
      assertEquals(left.status === "rejected" && left.reason, reason);
      assertEquals(stayed.status === "fulfilled" && stayed.value, expected);
    } finally {
      Drafter.prototype.step = step;
    }
  }
  assertEquals(model.memory().kvUsed, 0);
});

Deno.test("R64: a drafter that does not fit or is not there is an error of load, not a silent fallback", async () => {
  const wrong = await assertRejects(
    () => load(TINY, { ...EXACT, drafter: fixtureModel("assistant-e2b")! }),
    CheckpointError,
  );
  assertEquals(wrong.code, "drafter_mismatch");
  await assertRejects(() => load(TINY, { ...EXACT, drafter: "/no/such/folder" }), CheckpointError);
  await using model = await load(TINY, EXACT);
  for (const speculative of [0, 9, 1.5, "yes"]) {
    await assertRejects(() => generated(model, [2], { speculative: speculative as never }), InvalidArgument);
  }
});

Deno.test("a model with a drafter is disposed of with calls under way", async () => {
  const model: LoadedModel = await loadWith(TINY, WITH_DRAFTER, {});
  const replies = CASES.map(({ messages }) =>
    model.chat(messages, { temperature: 0 }).catch((error) => error.code)
  );
  await new Promise((resolve) => setTimeout(resolve, 5));
  await model[Symbol.asyncDispose]();
  for (const outcome of await Promise.all(replies)) {
    assert(outcome === "disposed" || outcome.text !== undefined, `${outcome}`);
  }
});

Deno.test("memory() counts a drafter's weights", async () => {
  const memoryOf = async (options: LoadOptions) => {
    await using model = await load(TINY, { device: "cpu", contextLength: 256, ...options });
    return model.memory();
  };
  const alone = await memoryOf({}), both = await memoryOf({ drafter: TINY_DRAFTER });
  const { tensors } = await openCheckpoint(TINY_DRAFTER);
  // All but the order of the tokens, which is a table.
  const own = [...tensors.values()].reduce(
    (sum, { name, data }) => sum + (name.endsWith("token_ordering") ? 0 : data.length),
    0,
  );
  assert(own > 1e6);
  assertEquals(both.weights - alone.weights, own);
  assertEquals(both.mapped - alone.mapped, own);
});

Deno.test("a drafter that does not fit the memory beside its model is refused with the numbers", async () => {
  const options = { ...EXACT, contextLength: 512 };
  let memory: number;
  {
    await using model = await loadWith(TINY, options, { kvPages: 200 });
    const { mapped, peak } = model.memory();
    memory = mapped + peak + 100_000;
  }
  const error = await assertRejects(
    () => loadWith(TINY, { ...options, memory, drafter: TINY_DRAFTER }, { kvPages: 200 }),
    MemoryLimit,
  );
  assertEquals(error.availableBytes, memory);
  assert(error.neededBytes > memory);
});
