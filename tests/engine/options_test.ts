import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { load, loadTokenizer } from "../../mod.ts";
import { settingsOf } from "../../src/engine/options.ts";
import { loadWith } from "../../src/engine/load.ts";
import { ContextFull, InvalidArgument, MemoryLimit, UnknownOption } from "../../src/errors.ts";
import { NO_SUGGESTION } from "../support/calls.ts";
import { TINY, TINY_DRAFTER } from "../support/models.ts";

const SUGGESTED = {
  temperature: 0.7,
  topK: 40,
  topP: 0.9,
  minP: 0.05,
  repetitionPenalty: 1.1,
  maxTokens: 50,
};

const configOf = (sampling: typeof SUGGESTED | typeof NO_SUGGESTION, suppressed: number[] = []) => ({
  sampling,
  vocabularySize: 100,
  tokens: { suppressed },
});

Deno.test("absent options come from the checkpoint's generation config, and from neutral values without one", () => {
  const read = (options: object, suggested: typeof SUGGESTED | typeof NO_SUGGESTION) => {
    const { temperature, topK, topP, minP, repetitionPenalty, maxTokens } = settingsOf(
      options,
      configOf(suggested),
    );
    return { temperature, topK, topP, minP, repetitionPenalty, maxTokens };
  };
  assertEquals(read({}, SUGGESTED), SUGGESTED);
  const neutral = { temperature: 1, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1, maxTokens: Infinity };
  assertEquals(read({}, NO_SUGGESTION), neutral);
  const given = { temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1, maxTokens: 9 };
  assertEquals(read(given, SUGGESTED), given);
});

Deno.test("tokens that a checkpoint suppresses have the least bias, unless the caller gives them one", () => {
  const config = configOf(NO_SUGGESTION, [7, 9]);
  const least = -1e6;
  assertEquals(settingsOf({}, config).logitBias, new Map([[7, least], [9, least]]));
  assertEquals(
    settingsOf({ logitBias: { 9: 0, 3: 2 } }, config).logitBias,
    new Map([[7, least], [9, 0], [3, 2]]),
  );
});

Deno.test("a token that a checkpoint suppresses is never drawn, drafts and look-ups included", async () => {
  const question = [{ role: "user" as const, content: "What is the capital of France?" }];
  const options = { temperature: 0, maxTokens: 20 };
  await using plain = await load(TINY);
  const usual = plain.tokenizer.encode((await plain.chat(question, options)).text);
  const suppressed = [usual[0], usual.at(-2)!];
  const bias = Object.fromEntries(suppressed.map((id) => [id, -1e6]));
  const wanted = await plain.chat(question, { ...options, logitBias: bias });
  assert(!suppressed.some((id) => plain.tokenizer.encode(wanted.text).includes(id)));
  await withFolderLike(TINY, { suppress_tokens: [...suppressed, 1e9] }, async (folder) => {
    for (const drafter of [undefined, TINY_DRAFTER]) {
      await using model = await load(folder, { drafter });
      for (const speculative of [false, true]) {
        assertEquals((await model.chat(question, { ...options, speculative })).text, wanted.text);
      }
      const free = await model.chat(question, {
        ...options,
        logitBias: { [suppressed[0]]: 0, [suppressed[1]]: 0 },
      });
      assertEquals(plain.tokenizer.encode(free.text), usual);
    }
  });
});

Deno.test("what a generation config asks for and is not done is a warning of the model and of each reply", async () => {
  const asked = { num_beams: 4, no_repeat_ngram_size: 3, typical_p: 1, min_length: 0, bad_words_ids: null };
  await withFolderLike(TINY, asked, async (folder) => {
    await using model = await load(folder);
    const warning = {
      code: "generation_config_unread",
      message: "generation_config.json asks for what is not done: no_repeat_ngram_size, num_beams.",
    };
    assertEquals(model.warnings, [warning]);
    assertEquals((await model.complete("The", { maxTokens: 1 })).warnings, [warning]);
  });
});

Deno.test("a suggested number of tokens ends a reply, and reserves no cache as a caller's own does", async () => {
  await withFolderLike(TINY, { max_new_tokens: 5 }, async (folder) => {
    await using model = await loadWith(folder, { contextLength: 4096 }, { kvPages: 40, keptPrefixes: 0 });
    const story = { temperature: 0, logitBias: { 1: -100, 9: -100, 16: -100 } };
    const reply = await model.complete("The", story);
    assertEquals([reply.usage.completionTokens, reply.finishReason], [5, "length"]);
    assertEquals((await model.complete("The", { ...story, maxTokens: 7 })).usage.completionTokens, 7);
  });
  await withFolderLike(TINY, { max_new_tokens: 4000 }, async (folder) => {
    await using model = await loadWith(folder, { contextLength: 4096 }, { kvPages: 60, keptPrefixes: 0 });
    const reply = await model.chat([{ role: "user", content: "What is 27 + 45?" }], { temperature: 0 });
    assertEquals(reply.text, "72");
    const named = model.generate([2, 300], { temperature: 0, maxTokens: 4000 });
    await assertRejects(() => named.next(), MemoryLimit);
  });
});

const WRONG: [string, unknown[]][] = [
  ["maxTokens", [0, -1, 1.5, NaN, "5", null]],
  ["temperature", [-0.1, NaN, Infinity, "1", null]],
  ["topK", [-1, 0.5, "3"]],
  ["topP", [0, 1.1, NaN, "0.5"]],
  ["minP", [-0.1, 1.1]],
  ["repetitionPenalty", [0, -1, 1e-320, Infinity]],
  ["presencePenalty", [NaN, 1000]],
  ["frequencyPenalty", ["1", -1000]],
  ["seed", [-1, 0.5, 2 ** 53, "7"]],
  ["stop", ["", [""], [1], 5, new Array(2), new Array(65).fill("x")]],
  ["logitBias", [
    [1],
    5,
    new Set([1]),
    new Date(0),
    { x: 1 },
    { 100: 1 },
    { 1: NaN },
    { 1: undefined },
    new Map([[-1, 1]]),
  ]],
  ["logprobs", [-1, 257, "3"]],
  ["ignoreEos", ["yes", 1]],
  ["signal", [{}, "x"]],
];

for (const [name, values] of WRONG) {
  Deno.test(`a wrong ${name} is an InvalidArgument that names it`, () => {
    for (const value of values) {
      assertThrows(() => settingsOf({ [name]: value } as never, configOf(SUGGESTED)), InvalidArgument, name);
    }
  });
}

Deno.test("a wrong value is told from the number that it resembles, and is short", () => {
  const wrong = (options: object) =>
    assertThrows(() => settingsOf(options as never, configOf(SUGGESTED)), InvalidArgument).message;
  assertEquals(wrong({ topP: 1n }), "topP is 1n; it must be a number above 0, up to 1.");
  const rule = "stop is a text or a list of at most 64 texts, none of them empty.";
  assertEquals(wrong({ stop: ["a", ""] }), `stop[1] is ""; ${rule}`);
  assertEquals(wrong({ stop: new Array(65).fill("a") }), `stop has 65 texts; ${rule}`);
  assertEquals(
    wrong({ topP: () => "a long text" }),
    "topP is a function; it must be a number above 0, up to 1.",
  );
});

Deno.test("an option that a call does not know throws UnknownOption, whatever its value", async () => {
  await assertRejects(() => load(TINY, { contextlength: 5 } as never), UnknownOption, "contextlength");
  await assertRejects(() => load(TINY, { lora: "x" } as never), UnknownOption, "lora");
  await using model = await load(TINY);
  const messages = [{ role: "user" as const, content: "Hi" }];
  const unknown = { responseFormat: undefined } as never;
  await assertRejects(() => model.chat(messages, unknown), UnknownOption, "responseFormat");
  await assertRejects(() => model.stream(messages, unknown).next(), UnknownOption);
  await assertRejects(() => model.chat(messages, { ignoreEos: true } as never), UnknownOption);
  await assertRejects(() => model.complete("Hi", { tools: [] } as never), UnknownOption);
  await assertRejects(() => model.generate([2], { thinking: true } as never).next(), UnknownOption);
  await assertRejects(() => model.logits([2], { first: 1 } as never), UnknownOption);
  await assertRejects(() => model.hidden([2], { last: 1 } as never), UnknownOption);
  await assertRejects(() => model.batch([], { speculation: true } as never), UnknownOption);
  assertThrows(() => model.explain({ chip: "M1" } as never), UnknownOption);
  assertThrows(() => model.renderChat(messages, { thinkin: true } as never), UnknownOption);
  using session = model.session();
  await assertRejects(() => session.append(messages, unknown), UnknownOption);
  await session.append([2, 15]);
  await assertRejects(() => session.generate(unknown).next(), UnknownOption);
});

Deno.test("a temperature too small to divide by is greedy instead of an error of the device", async () => {
  await using model = await load(TINY);
  const greedy = await model.complete("The", { temperature: 0, maxTokens: 8 });
  for (const temperature of [1e-6, 1e-10, 1e-50, 5e-324]) {
    const reply = await model.complete("The", { temperature, maxTokens: 8, topK: 0, topP: 1 });
    assertEquals(reply.text, greedy.text);
  }
});

Deno.test("wrong options of a rendered chat are named rather than taken for absent", async () => {
  await using model = await load(TINY);
  const messages = [{ role: "user" as const, content: "Hi" }];
  const wrong = [
    ...[null, 5, {}, "x"].map((tools) => ({ tools })),
    ...[null, 1, "yes"].map((thinking) => ({ thinking })),
    ...[null, 0, "no"].map((addGenerationPrompt) => ({ addGenerationPrompt })),
  ];
  for (const options of wrong) {
    const name = Object.keys(options)[0];
    assertThrows(() => model.renderChat(messages, options as never), InvalidArgument, name);
    if (name === "addGenerationPrompt") continue;
    await assertRejects(() => model.chat(messages, options as never), InvalidArgument, name);
  }
});

Deno.test("options that are no plain object are refused rather than taken for none", async () => {
  await using model = await load(TINY);
  for (const options of [null, 5, "x", [], new Map([["temperature", 0]]), new Date(), /x/]) {
    await assertRejects(() => load(TINY, options as never), InvalidArgument, "Options are");
    await assertRejects(() => model.complete("Hi", options as never), InvalidArgument, "Options are");
    await assertRejects(() => loadTokenizer(TINY, options as never), InvalidArgument, "Options are");
    assertThrows(() => model.explain(options as never), InvalidArgument, "Options are");
  }
  await assertRejects(() => loadTokenizer(TINY, { cache: "x" } as never), UnknownOption, "cache");
  await assertRejects(() => loadTokenizer(TINY, { signal: 5 } as never), InvalidArgument, "signal");
  const { text } = await model.complete(
    "The",
    Object.assign(Object.create(null), { maxTokens: 1, temperature: 0 }),
  );
  assertEquals(typeof text, "string");
});

Deno.test("a wrong budget of soft tokens is named, with pictures or without", async () => {
  await using model = await load(TINY);
  const messages = [{ role: "user" as const, content: "Hi" }];
  for (const imageTokens of [null, 0, 71, "70", Symbol("70")] as never[]) {
    const named = [InvalidArgument, "imageTokens"] as const;
    await assertRejects(() => model.chat(messages, { imageTokens }), ...named);
    await assertRejects(() => model.logits([2, 5], { imageTokens }), ...named);
    await assertRejects(() => model.embedAudio("x.wav", { imageTokens }), ...named);
    using session = model.session();
    await assertRejects(() => session.append([2, 5], { imageTokens }), ...named);
  }
});

Deno.test("wrong figures for explain are named", async () => {
  await using model = await load(TINY);
  for (const value of [null, -1, 0.5, "1", Symbol("1")] as never[]) {
    assertThrows(() => model.explain({ rows: value }), InvalidArgument, "rows");
    assertThrows(() => model.explain({ context: value }), InvalidArgument, "context");
    assertThrows(() => model.explain({ device: value }), InvalidArgument, "device");
  }
});

Deno.test("wrong load options are named before anything is opened", async () => {
  const wrong = [
    { device: "gpu" },
    { precision: "half" },
    { kvCache: "q4" },
    { contextLength: 0 },
    { memory: -1 },
    { cache: 5 },
    { onProgress: true },
    { signal: {} },
  ];
  for (const options of wrong) {
    await assertRejects(
      () => load("no such folder", options as never),
      InvalidArgument,
      Object.keys(options)[0],
    );
  }
  await assertRejects(() => load(5 as never), InvalidArgument);
});

Deno.test("token ids must be whole numbers of the vocabulary", async () => {
  await using model = await load(TINY);
  for (const ids of [[2, 1536], [2, -1], [2.5], [NaN], ["2"], []]) {
    await assertRejects(() => model.logits(ids as number[]), InvalidArgument);
    await assertRejects(() => model.generate(ids as number[]).next(), InvalidArgument);
  }
  for (const length of [-1, 1.5, NaN, Infinity, "2", undefined]) {
    await assertRejects(() => model.logits({ length } as never), InvalidArgument);
  }
  await assertRejects(() => model.hidden({ length: 2 ** 40 } as never), ContextFull, `${2 ** 40}`);
  await assertRejects(() => model.logits([2, 3], { last: 3 }), InvalidArgument, "last");
});

/** A folder with the files of another and more in its generation config. */
async function withFolderLike(
  other: string,
  suggested: Record<string, unknown>,
  work: (folder: string) => Promise<void>,
): Promise<void> {
  const folder = await Deno.makeTempDir();
  try {
    for await (const { name } of Deno.readDir(other)) {
      await Deno.symlink(`${other}/${name}`, `${folder}/${name}`);
    }
    const path = `${folder}/generation_config.json`;
    const before = JSON.parse(await Deno.readTextFile(path));
    await Deno.remove(path);
    await Deno.writeTextFile(path, JSON.stringify({ ...before, ...suggested }));
    await work(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}
