/** Replies from scripted tokens: what ends them, and what becomes of their text. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { load, loadTokenizer, type Message, type Model, type Reply, type StreamPart } from "../../mod.ts";
import type { Draw } from "../../src/engine/draw.ts";
import { chatReader, replyParts, textReader } from "../../src/engine/reply.ts";
import { EXACT } from "../support/calls.ts";
import { TINY } from "../support/models.ts";

const tokenizer = await loadTokenizer(TINY);
const FACTS = {
  promptTokens: 3,
  generation: { cachedTokens: 0 },
  warnings: [],
  receipt: {
    weights: "",
    library: "",
    device: "cpu",
    precision: "exact" as const,
    kvCache: "f32" as const,
    matrixUnits: false,
    seed: 1,
    promptIds: [],
  },
  contextLength: 100,
};

/** A reply whose tokens are given; `end` belongs to the last. */
async function scripted(ids: number[], end: Draw["end"], stops: string[] = [], raw = false) {
  let drawn = 0;
  async function* draws(): AsyncGenerator<Draw, void, undefined> {
    for (const [i, id] of ids.entries()) {
      await Promise.resolve();
      drawn++;
      yield { id, end: i === ids.length - 1 ? end : undefined };
    }
  }
  const parts: StreamPart[] = [];
  const reader = raw ? textReader(tokenizer) : chatReader(tokenizer, []);
  for await (const part of replyParts(draws(), reader, stops, FACTS)) parts.push(part);
  const done = parts.at(-1)!;
  assert(done.type === "done");
  const streamed = parts.filter((part) => part.type === "text").map((part) => part.text).join("");
  assertEquals(streamed, done.reply.text);
  return { reply: done.reply, parts, drawn };
}

Deno.test("text that spells a foreign end marker in ordinary pieces goes on", async () => {
  const text = "Write <end_of_turn> or <turn|> and <eos> like this.";
  const ids = tokenizer.encode(text);
  assert(ids.length > 10);
  const { reply } = await scripted([...ids, 16], "stop");
  assertEquals(reply.text, text);
  assertEquals(reply.finishReason, "stop");
});

Deno.test("the token that ends a reply is counted but is no text", async () => {
  const { reply } = await scripted([...tokenizer.encode("Yes."), 16], "stop");
  assertEquals([reply.text, reply.finishReason], ["Yes.", "stop"]);
  assertEquals(reply.usage.completionTokens, tokenizer.encode("Yes.").length + 1);
});

Deno.test("a stop text ends reply and generation before its first character, across tokens", async () => {
  const ids = tokenizer.encode("One, two, three, four.");
  for (const raw of [false, true]) {
    const { reply, drawn } = await scripted(ids, "maxTokens", [" thr", "zzz"], raw);
    assertEquals([reply.text, reply.finishReason], ["One, two,", "stop"]);
    assert(drawn < ids.length);
  }
});

Deno.test("a reply that reaches its limit ends with length, and says so when the context was the limit", async () => {
  const { reply } = await scripted(tokenizer.encode("One, two"), "maxTokens");
  assertEquals([reply.finishReason, reply.warnings], ["length", []]);
  const full = await scripted(tokenizer.encode("One, two"), "context");
  assertEquals(full.reply.finishReason, "length");
  assertEquals(full.reply.warnings.map((warning) => warning.code), ["context_full"]);
});

Deno.test("an unfinished character at the end becomes U+FFFD rather than nothing", async () => {
  const bytes = tokenizer.encode("👋").slice(0, -1);
  const { reply } = await scripted(bytes, "maxTokens");
  assert(reply.text.length > 0 && /^\uFFFD+$/.test(reply.text), JSON.stringify(reply.text));
});

Deno.test("a call that is cut off is text with a warning, and the reply ends with length", async () => {
  const ids = tokenizer.encode('<|tool_call>call:get_time{city:<|"|>Par', { special: true });
  const { reply } = await scripted(ids, "maxTokens");
  assertEquals(reply.finishReason, "length");
  assertEquals(reply.toolCalls, []);
  assert(reply.warnings.some((warning) => warning.code === "tool_call_cut_off"));
});

/** The shipped model with another end of its chat template, opened for one use. */
async function withTemplateEnd(end: string, use: (model: Model) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir();
  try {
    for (const { name } of Deno.readDirSync(TINY)) await Deno.symlink(`${TINY}/${name}`, `${folder}/${name}`);
    const template = await Deno.readTextFile(`${TINY}/chat_template.jinja`);
    await Deno.remove(`${folder}/chat_template.jinja`);
    await Deno.writeTextFile(`${folder}/chat_template.jinja`, template.trimEnd() + end);
    await using model = await load(folder, EXACT);
    await use(model);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

Deno.test("R10: without the flag nothing of a thought is in prompt or reply, with it both fields are filled", async () => {
  const messages: Message[] = [
    { role: "system", content: "Be brief." },
    { role: "user", content: "What is 78 + 47?" },
  ];
  const check = async (model: Model) => {
    const plain = await model.chat(messages, { temperature: 0 });
    assertEquals([plain.text, plain.thinking, plain.warnings], ["125", "", []]);
    assert(!tokenizer.decode(plain.receipt.promptIds).includes("<|think|>"));
    const thought = await model.chat(messages, { temperature: 0, thinking: true });
    assertEquals([thought.text, thought.warnings], ["125", []]);
    assertEquals(thought.thinking, "Units: 8 + 7 = 15. Tens: 7 + 4 + 1 = 12. Total: 125.");
    return thought.receipt.promptIds;
  };
  await using model = await load(TINY, EXACT);
  const prompt = await check(model);
  // A template that begins the thoughts itself, as Gemma 4's do after the results of tools since July 2026.
  await withTemplateEnd("{% if enable_thinking %}<|channel>thought\n{% endif %}", async (begun) => {
    assertEquals(await check(begun), [
      ...prompt,
      ...tokenizer.encode("<|channel>thought\n", { special: true }),
    ]);
    using session = begun.session();
    await session.append(messages, { thinking: true });
    await Array.fromAsync(session.generate({ temperature: 0 }));
    await session.append([{ role: "user", content: "What is 27 + 45?" }]);
    const past: Message[] = [...messages, { role: "assistant", content: "125" }];
    const whole = [...past, { role: "user" as const, content: "What is 27 + 45?" }];
    assertEquals(begun.tokenizer.decode(session.ids), begun.renderChat(whole, { thinking: true }));
  });
});

Deno.test("each end token of each source ends a reply once, with finishReason stop", async () => {
  await using model = await load("tiny");
  const messages = [{ role: "user" as const, content: "What is 2 + 3?" }];
  assertEquals([...model.config.tokens.eos].sort((a, b) => a - b), [1, 9, 16]);
  for (const id of model.config.tokens.eos) {
    const reply: Reply = await model.chat(messages, {
      logitBias: { [id]: 1000 },
      temperature: 0,
      maxTokens: 20,
    });
    assertEquals([reply.finishReason, reply.text, reply.usage.completionTokens], ["stop", "", 1]);
    const prompt = reply.receipt.promptIds;
    const ids: number[] = [];
    for await (const next of model.generate(prompt, { logitBias: { [id]: 1000 }, maxTokens: 20 })) {
      ids.push(next);
    }
    assertEquals(ids, [id]);
    ids.length = 0;
    const options = { logitBias: { [id]: 1000 }, maxTokens: 5, ignoreEos: true };
    for await (const next of model.generate(prompt, options)) ids.push(next);
    assertEquals(ids, [id, id, id, id, id]);
  }
});

Deno.test("an error thrown into a stream ends it and is what its caller gets", async () => {
  await using model = await load(TINY, { device: "cpu" });
  const stream = model.stream([{ role: "user", content: "Tell me a story." }], { temperature: 0 });
  await stream.next();
  await assertRejects(() => stream.throw(new RangeError("enough")), RangeError, "enough");
  assertEquals(await stream.next(), { value: undefined, done: true });
});
