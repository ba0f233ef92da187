/** The public API as a whole: every name, option, default and field that scripts rely on is there and does what it says. */
import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import * as markbase from "../../mod.ts";
import type { Model, Session } from "../../mod.ts";
import { TINY } from "../support/models.ts";

const HELLO = [{ role: "user" as const, content: "Hello!" }];
const GREEDY = { temperature: 0, maxTokens: 4 };

/** Opens the shipped model for one test. */
async function withModel(work: (model: Model) => void | Promise<void>): Promise<void> {
  await using model = await markbase.load(TINY, { device: "cpu" });
  await work(model);
}

Deno.test("mod.ts exports load, explain, the tokenizer and the error classes, and nothing else", () => {
  assertEquals(Object.keys(markbase).sort(), [
    "CheckpointError",
    "ContextFull",
    "DeviceError",
    "Disposed",
    "HubError",
    "InvalidArgument",
    "LibraryError",
    "MarkbaseError",
    "MediaError",
    "MemoryLimit",
    "MissingPermission",
    "SessionError",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "UnknownOption",
    "explain",
    "load",
    "loadTokenizer",
  ]);
  for (const [name, value] of Object.entries(markbase)) {
    if (!name.endsWith("Error") && !["ContextFull", "Disposed", "MemoryLimit"].includes(name)) continue;
    assert(
      value === markbase.MarkbaseError ||
        (value as unknown as typeof Error).prototype instanceof markbase.MarkbaseError,
    );
  }
});

Deno.test("load takes every option at once, and its defaults are auto, fast and f16", async () => {
  const stages: string[] = [];
  await using given = await markbase.load("tiny", {
    device: "cpu",
    precision: "exact",
    contextLength: 300,
    memory: 2 ** 30,
    kvCache: "f32",
    drafter: new URL("../../examples/tiny-drafter", import.meta.url),
    onProgress: ({ stage, completed, total }) => {
      assert(completed <= total);
      stages.push(stage);
    },
    signal: new AbortController().signal,
  });
  assert(stages.includes("compile"));
  const { receipt, speculation } = await given.chat(HELLO, GREEDY);
  assertEquals([receipt.device, receipt.precision, receipt.kvCache], ["cpu", "exact", "f32"]);
  assertEquals([given.contextLength, speculation?.drafter], [300, "network"]);
  await using plain = await markbase.load("tiny");
  const usual = (await plain.chat(HELLO, GREEDY)).receipt;
  assertEquals([usual.precision, usual.kvCache, usual.matrixUnits], ["fast", "f16", false]);
  for (const kvCache of ["f16", "f32", "q8"] as const) {
    await using model = await markbase.load("tiny", { device: "cpu", kvCache });
    assertEquals((await model.chat(HELLO, GREEDY)).receipt.kvCache, kvCache);
  }
  await using units = await markbase.load("tiny", { device: "cpu", matrixUnits: true });
  assertEquals((await units.chat(HELLO, GREEDY)).receipt.matrixUnits, true);
  const wrong = markbase.load("tiny", { matrixUnits: "yes" as never });
  await assertRejects(() => wrong, markbase.InvalidArgument, "matrixUnits must be true or false");
});

Deno.test("logits are last × vocabulary, hidden states one more than layers", async () => {
  await withModel(async (model) => {
    const { vocabularySize: V, layers, hiddenSize } = model.config;
    const ids = model.tokenizer.encode("What is 2 + 3?");
    const one = await model.logits(ids);
    const three = await model.logits(ids, { last: 3, media: [] });
    assert(one instanceof Float32Array && three instanceof Float32Array);
    assertEquals([one.length, three.length], [V, 3 * V]);
    assertEquals(three.subarray(2 * V), one, "the last position comes last");
    const states = await model.hidden(ids);
    assertEquals(states.length, layers.length + 1);
    for (const state of states) assertEquals(state.length, hiddenSize);
  });
});

Deno.test("a reply has text, thinking, calls, reason, usage, warnings and a receipt that replays it", async () => {
  await withModel(async (model) => {
    const reply = await model.chat([{ role: "user", content: "What is 27 + 45?" }], { seed: 7 });
    assertEquals([reply.thinking, reply.toolCalls, reply.finishReason, reply.warnings], ["", [], "stop", []]);
    const { promptTokens, cachedTokens, completionTokens } = reply.usage;
    assertEquals([promptTokens, cachedTokens], [reply.receipt.promptIds.length, 0]);
    const { receipt } = reply;
    assertEquals(receipt.seed, 7);
    const ids = await Array.fromAsync(model.generate(receipt.promptIds, { seed: receipt.seed }));
    assertEquals(ids.length, completionTokens);
    assertEquals(model.tokenizer.decode(ids, { skipSpecial: true }), reply.text);
  });
});

Deno.test("a stream's pieces join to its reply, which comes last", async () => {
  await withModel(async (model) => {
    const parts = await Array.fromAsync(model.stream(HELLO, { temperature: 0 }));
    const last = parts.pop()!;
    assert(last.type === "done");
    assertEquals(last.finishReason, last.reply.finishReason);
    assertEquals(parts.map((part) => part.type === "text" ? part.text : "").join(""), last.reply.text);
  });
});

Deno.test("every option of a reply is taken, and absent ones are those of the checkpoint", async () => {
  await withModel(async (model) => {
    const all = {
      maxTokens: 3,
      temperature: 0.5,
      topK: 5,
      topP: 0.9,
      minP: 0.05,
      repetitionPenalty: 1.1,
      presencePenalty: 0.1,
      frequencyPenalty: 0.1,
      seed: 1,
      stop: ["never"],
      logitBias: { 5: -1 },
      logprobs: 2,
      tools: [],
      thinking: false,
      imageTokens: 70,
      speculative: true,
      signal: new AbortController().signal,
    };
    const reply = await model.chat(HELLO, all);
    assertEquals([reply.usage.completionTokens, reply.logprobs?.length, reply.speculation?.drafter], [
      3,
      3,
      "lookup",
    ]);
    assertEquals(reply.logprobs?.map(({ top }) => top.length), [2, 2, 2]);
    const { tools: _, thinking: __, imageTokens: ___, ...raw } = all;
    assertEquals((await model.complete("The", raw)).usage.completionTokens, 3);
    assertEquals((await Array.fromAsync(model.generate([2, 5], { ...raw, ignoreEos: true }))).length, 3);
    const { sampling } = model.config;
    const spelt = {
      temperature: sampling.temperature ?? 1,
      topK: sampling.topK ?? 0,
      topP: sampling.topP ?? 1,
      minP: 0,
      seed: 3,
    };
    assertEquals((await model.chat(HELLO, { seed: 3 })).text, (await model.chat(HELLO, spelt)).text);
  });
});

Deno.test("a batch keeps the order of conversations, requests with options and texts", async () => {
  await withModel(async (model) => {
    const ask = (a: number) => [{ role: "user" as const, content: `What is ${a} + 1?` }];
    const replies = await model.batch(
      [ask(5), { messages: ask(8), maxTokens: 1 }, { prompt: "The", maxTokens: 2 }, ask(9)],
      { temperature: 0 },
    );
    assertEquals([replies[0].text, replies[3].text], ["6", "10"]);
    assertEquals(replies.map(({ finishReason }) => finishReason), ["stop", "length", "length", "stop"]);
  });
});

Deno.test("a session appends, generates, forks, saves and restores", async () => {
  const path = await Deno.makeTempFile();
  try {
    await withModel(async (model) => {
      using session: Session = model.session();
      await session.append([{ role: "user", content: "My name is Grace." }]);
      await Array.fromAsync(session.generate({ temperature: 0 }));
      await session.save(path);
      using other = session.fork();
      using restored = model.session();
      await restored.restore(path);
      const answers = [];
      for (const one of [session, other, restored]) {
        await one.append([{ role: "user", content: "What is my name?" }]);
        answers.push(
          model.tokenizer.decode(await Array.fromAsync(one.generate({ temperature: 0 })), {
            skipSpecial: true,
          }),
        );
      }
      assertEquals(answers, Array(3).fill("Your name is Grace."));
      using ids = model.session();
      await ids.append([2, 5, 6]);
      assertEquals([...ids.ids], [2, 5, 6]);
    });
  } finally {
    await Deno.remove(path);
  }
});

Deno.test("pictures and sounds become rows of the hidden size", async () => {
  await withModel(async (model) => {
    const file = (name: string) => new URL(`../../examples/media/${name}`, import.meta.url);
    for (
      const rows of [await model.embedImage(file("circles.png")), await model.embedAudio(file("rising.wav"))]
    ) {
      assert(rows instanceof Float32Array && rows.length > 0 && rows.length % model.config.hiddenSize === 0);
    }
  });
});

Deno.test("explain tells ops, dispatches, bytes, FLOPs and time on a named device; memory tells bytes by kind", async () => {
  await withModel((model) => {
    const explained = model.explain({ device: "M4 Max", rows: 64, context: 128 });
    assertEquals([explained.device.name, explained.variant, explained.rows, explained.context], [
      "M4 Max",
      "prefill",
      64,
      128,
    ]);
    const { ops, dispatches, bytes, flops, seconds } = explained.totals;
    for (const total of [ops, dispatches, bytes, flops, seconds]) assert(total > 0);
    assertEquals(ops, explained.ops.length);
    const memory = model.memory();
    assertEquals(Object.keys(memory).sort(), [
      "activations",
      "copied",
      "kv",
      "kvUsed",
      "mapped",
      "peak",
      "repacked",
      "weights",
    ]);
    for (const bytes of Object.values(memory)) assert(Number.isSafeInteger(bytes) && bytes >= 0);
    return Promise.resolve();
  });
});

Deno.test("a tokenizer alone encodes, decodes and streams as the model's does", async () => {
  const tokenizer = await markbase.loadTokenizer(TINY);
  const text = "What is 2 + 3? <bos> naïve 日本";
  const plain = tokenizer.encode(text), special = tokenizer.encode(text, { special: true });
  assertEquals(tokenizer.decode(plain), text);
  assert(!plain.includes(tokenizer.bos!) && special.includes(tokenizer.bos!));
  assertEquals(tokenizer.decode(special, { skipSpecial: true }), text.replace("<bos>", ""));
  const stream = tokenizer.stream();
  assertEquals(plain.map((id) => stream.push(id)).join("") + stream.flush(), text);
  await withModel((model) => {
    assertEquals(model.tokenizer.encode(text), plain);
    assertEquals(
      model.renderChat(HELLO, { tools: [], thinking: false, addGenerationPrompt: true }),
      model.renderChat(HELLO),
    );
    assert(model.renderChat(HELLO).length > model.renderChat(HELLO, { addGenerationPrompt: false }).length);
  });
});

Deno.test("after disposal every call is a Disposed error", async () => {
  const model = await markbase.load(TINY, { device: "cpu" });
  const session = model.session();
  model[Symbol.dispose]();
  model[Symbol.dispose]();
  const calls: (() => Promise<unknown>)[] = [
    () => model.chat(HELLO),
    () => model.stream(HELLO).next(),
    () => model.complete("The"),
    () => model.batch([HELLO]),
    () => model.logits([2]),
    () => model.hidden([2]),
    () => model.generate([2]).next(),
    () => model.embedImage("x.png"),
    () => model.embedAudio("x.wav"),
    () => session.append([2]),
    () => session.generate().next(),
    () => session.save("/nowhere/x"),
    () => session.restore("/nowhere/x"),
  ];
  for (const call of calls) {
    assertEquals((await assertRejects(call, markbase.Disposed)).code, "disposed");
  }
  for (
    const call of [
      () => model.memory(),
      () => model.explain(),
      () => model.explain({ device: "M4", rows: 0 }), // whatever else may be wrong
      () => model.session(),
      () => session.fork(),
      () => model.renderChat(HELLO),
    ]
  ) {
    assertThrows(call, markbase.Disposed);
  }
  // What was read at load can still be read.
  assertEquals([model.config.modelType, model.contextLength > 0, model.warnings], ["gemma4", true, []]);
  assertEquals(model.tokenizer.decode(model.tokenizer.encode("Hello")), "Hello");
  assertEquals([session.ids, session.warnings], [[], []]);
});
