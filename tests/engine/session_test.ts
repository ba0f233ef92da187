import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { Pass } from "../../ffi/pass.ts";
import {
  ContextFull,
  Disposed,
  InvalidArgument,
  load,
  MemoryLimit,
  type Message,
  SessionError,
} from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import { EXACT } from "../support/calls.ts";
import { fixtureModel, TINY } from "../support/models.ts";

const GREEDY = { temperature: 0, ignoreEos: true } as const;

/** Prompt ids of `length`, longer than the window of the fixture (32) and of tiny (64). */
function prompt(length: number, start = 0): number[] {
  return Array.from({ length }, (_, i) => 3 + (start + i * 29) % 230);
}

async function withModels<T>(
  work: (model: Awaited<ReturnType<typeof loadWith>>) => Promise<T>,
): Promise<void> {
  for (const folder of [fixtureModel("e2b")!, fixtureModel("e4b-mlx-mixed")!]) {
    await using model = await loadWith(folder, EXACT, {});
    await work(model);
  }
}

Deno.test("a session that is appended to and generates in parts equals one fresh run", async () => {
  await withModels(async (model) => {
    using session = model.session();
    await session.append(prompt(100));
    const first = await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 10 }));
    const second = await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 5 }));
    assertEquals(
      [...first, ...second],
      await Array.fromAsync(model.generate(prompt(100), { ...GREEDY, maxTokens: 15 })),
    );
    await session.append(prompt(40, 9));
    const third = await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 6 }));
    const whole = [...prompt(100), ...first, ...second, ...prompt(40, 9)];
    assertEquals(third, await Array.fromAsync(model.generate(whole, { ...GREEDY, maxTokens: 6 })));
    assertEquals(session.ids, [...whole, ...third]);
  });
});

Deno.test("forks share a past, and none sees what the others do afterwards", async () => {
  await withModels(async (model) => {
    using session = model.session();
    await session.append(prompt(77));
    const past = [...prompt(77), ...await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 4 }))];
    using left = session.fork();
    using right = session.fork();
    await left.append(prompt(10, 50));
    await right.append(prompt(20, 90));
    const [a, b, c] = await Promise.all(
      [left, right, session].map((each) => Array.fromAsync(each.generate({ ...GREEDY, maxTokens: 8 }))),
    );
    const fresh = (ids: number[]) => Array.fromAsync(model.generate(ids, { ...GREEDY, maxTokens: 8 }));
    assertEquals(a, await fresh([...past, ...prompt(10, 50)]));
    assertEquals(b, await fresh([...past, ...prompt(20, 90)]));
    assertEquals(c, await fresh(past));
  });
});

Deno.test("a saved session restores into the same or another load and goes on as if never left", async () => {
  const folder = await Deno.makeTempDir();
  const path = `${folder}/session`;
  try {
    for (const name of ["e2b", "e4b-mlx-mixed"]) {
      let expected: number[];
      {
        await using model = await load(fixtureModel(name)!, EXACT);
        using session = model.session();
        await session.append(prompt(100));
        await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 7 }));
        await session.save(path);
        expected = await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 9 }));
        using same = model.session();
        await same.append([5, 6, 7]);
        await same.restore(path);
        assertEquals(await Array.fromAsync(same.generate({ ...GREEDY, maxTokens: 9 })), expected);
      }
      await using again = await loadWith(fixtureModel(name)!, EXACT, {});
      using session = again.session();
      await session.restore(path);
      assertEquals(session.ids.length, 107);
      const { rows } = again.engine.forward.counts;
      assertEquals(await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 9 })), expected);
      assertEquals(again.engine.forward.counts.rows - rows, 9, "nothing restored is computed again");
    }
    assertEquals(
      [...Deno.readDirSync(folder)].map((entry) => entry.name),
      ["session"],
      "no temporary file stays",
    );
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("a session whose prompt was cut off by an abort can be saved, restored and continued", async () => {
  const path = await Deno.makeTempFile();
  try {
    await using model = await loadWith(fixtureModel("e2b")!, EXACT, { chunkRows: 64, keptPrefixes: 0 });
    using session = model.session();
    await session.append(prompt(1000));
    const { run } = Pass.prototype;
    let runs = 0;
    Pass.prototype.run = function (...args) {
      return ++runs === 5 ? Promise.reject(new Error("cut off")) : run.apply(this, args);
    };
    await assertRejects(() => session.generate(GREEDY).next(), Error, "cut off");
    Pass.prototype.run = run;
    await session.save(path);
    using restored = model.session();
    await restored.restore(path);
    const { rows } = model.engine.forward.counts;
    const options = { ...GREEDY, maxTokens: 5 };
    const ids = await Array.fromAsync(restored.generate(options));
    assertEquals(model.engine.forward.counts.rows - rows, 1000 - 4 * 64 + 4);
    assertEquals(ids, await Array.fromAsync(session.generate(options)));
    assertEquals(ids, await Array.fromAsync(model.generate(prompt(1000), options)));
  } finally {
    await Deno.remove(path);
  }
});

Deno.test("a damaged, foreign or missing session file is a typed error and leaves the session as it was", async () => {
  const folder = await Deno.makeTempDir();
  const path = `${folder}/session`;
  try {
    await using model = await loadWith(fixtureModel("e2b")!, EXACT, { keptPrefixes: 0 });
    using session = model.session();
    await session.append(prompt(60));
    await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 3 }));
    await session.save(path);
    const good = await Deno.readFile(path);
    const ids = session.ids;
    const used = model.memory().kvUsed;
    const expectCode = async (bytes: Uint8Array, code: string) => {
      await Deno.writeFile(path, bytes);
      const error = await assertRejects(() => session.restore(path), SessionError);
      assertEquals(error.code, code);
      assertEquals(session.ids, ids);
      assertEquals(model.memory().kvUsed, used);
    };
    for (const length of [0, 7, 11, 40, good.length - 33, good.length - 1]) {
      await expectCode(good.subarray(0, length), "session_damaged");
    }
    await expectCode(new Uint8Array([...good, 0]), "session_damaged");
    for (const at of [0, 9, good.length - 5, good.length - 5000, good.length >> 1]) {
      const bad = good.slice();
      bad[at] ^= 1;
      await expectCode(bad, "session_damaged");
    }
    await expectCode(new TextEncoder().encode("MBSESSN1 and then something else"), "session_damaged");

    await Deno.writeFile(path, good);
    await using other = await load(fixtureModel("e4b")!, EXACT);
    using foreign = other.session();
    assertEquals((await assertRejects(() => foreign.restore(path), SessionError)).code, "session_model");
    await using half = await load(fixtureModel("e2b")!, { ...EXACT, kvCache: "f16" });
    using converted = half.session();
    assertEquals((await assertRejects(() => converted.restore(path), SessionError)).code, "session_format");
    const missing = await assertRejects(() => session.restore(`${folder}/none`), SessionError);
    assertEquals(missing.code, "session_missing");
    await session.restore(path);
    assertEquals(session.ids, ids);
    assertEquals(
      (await assertRejects(() => session.restore(folder), SessionError)).code,
      "session_unreadable",
    );
    for (const place of [folder, `${folder}/none/session`]) {
      const error = await assertRejects(() => session.save(place), SessionError, place);
      assertEquals(error.code, "session_unwritable");
    }
    const twin = `${folder}/twin`;
    await Deno.symlink("/dev/null", twin);
    const refused = await assertRejects(() => session.save(twin), SessionError, "no file");
    assertEquals(refused.code, "session_unwritable");
    await Deno.remove(twin);
    for (const place of ["", null, 5, new URL("file:///session")]) {
      await assertRejects(() => session.save(place as string), InvalidArgument);
      await assertRejects(() => session.restore(place as string), InvalidArgument);
    }
    const left = [...Deno.readDirSync(folder)].map(({ name }) => name);
    assertEquals(left, ["session"], "no half-written file stays");
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("an exact model refuses a cache that fast arithmetic made, and a fast one takes an exact one's", async () => {
  const path = await Deno.makeTempFile();
  try {
    await using fast = await load("tiny", { ...EXACT, precision: "fast" });
    await using exact = await load("tiny", EXACT);
    using quick = fast.session();
    using careful = exact.session();
    await quick.append(prompt(60));
    await quick.save(path);
    const error = await assertRejects(() => careful.restore(path), SessionError, 'precision: "fast"');
    assertEquals(error.code, "session_precision");
    await careful.append(prompt(50));
    await careful.save(path);
    await quick.restore(path);
    assertEquals(quick.ids.length, 50);
  } finally {
    await Deno.remove(path);
  }
});

Deno.test("options of messages are refused with token ids, which nothing renders", async () => {
  await using model = await load("tiny", EXACT);
  using session = model.session();
  for (const option of [{ thinking: true }, { tools: [] }, { addGenerationPrompt: false }]) {
    const [name] = Object.keys(option);
    await assertRejects(() => session.append([5, 6], option), InvalidArgument, `The option ${name} goes`);
  }
  await session.append([5, 6], { thinking: undefined });
  assertEquals(session.ids, [5, 6]);
});

Deno.test("a session file whose checksum fits but whose conversation makes no sense is damaged", async () => {
  const path = await Deno.makeTempFile();
  try {
    await using model = await load("tiny", EXACT);
    using session = model.session();
    await session.append([{ role: "user", content: "Hi" }]);
    await session.save(path);
    const good = await Deno.readFile(path);
    const length = new DataView(good.buffer).getUint32(8, true);
    const header = JSON.parse(new TextDecoder().decode(good.subarray(12, 12 + length)));
    const { conversation } = header;
    const wrong = [
      "text",
      {},
      { ...conversation, base: -1 },
      { ...conversation, base: 1e9 },
      { ...conversation, replyStart: header.ids.length + 1 },
      { ...conversation, messages: null },
      { ...conversation, options: 5 },
      { ...conversation, media: 5 },
      { ...conversation, media: [{ kind: "image", spans: 1 }] },
      { ...conversation, media: [null] },
    ];
    for (const made of wrong) {
      const json = new TextEncoder().encode(JSON.stringify({ ...header, conversation: made }));
      const size = new Uint8Array(new Uint32Array([json.length]).buffer);
      const pages = good.subarray(12 + length, good.length - 32);
      const body = new Uint8Array([...good.subarray(0, 8), ...size, ...json, ...pages]);
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
      await Deno.writeFile(path, new Uint8Array([...body, ...digest]));
      const error = await assertRejects(() => session.restore(path), SessionError);
      assertEquals(error.code, "session_damaged", JSON.stringify(made));
    }
    await Deno.writeFile(path, good);
    await session.restore(path);
    await session.append([{ role: "user", content: "What is 2 + 2?" }]);
  } finally {
    await Deno.remove(path);
  }
});

Deno.test("a session tells what it ignored of its messages, each thing once", async () => {
  await using model = await load("tiny", EXACT);
  using session = model.session();
  await session.append([{ role: "user", content: "Hi", images: ["a.png"] }]);
  await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 3 }));
  await session.append([{ role: "user", content: "What is 2 + 2?" }]);
  assertEquals(session.warnings.map(({ code }) => code), ["field_ignored"]);
});

Deno.test("messages appended turn by turn answer as a chat with the whole conversation does", async () => {
  await using model = await loadWith(TINY, EXACT, { keptPrefixes: 0 });
  using session = model.session();
  await session.append([{ role: "user", content: "My name is Grace." }]);
  const first = model.tokenizer.decode(await Array.fromAsync(session.generate({ temperature: 0 })), {
    skipSpecial: true,
  });
  const { rows } = model.engine.forward.counts;
  await session.append([{ role: "user", content: "What is my name?" }]);
  const second = model.tokenizer.decode(await Array.fromAsync(session.generate({ temperature: 0 })), {
    skipSpecial: true,
  });
  const messages: Message[] = [
    { role: "user", content: "My name is Grace." },
    { role: "assistant", content: first },
    { role: "user", content: "What is my name?" },
  ];
  const evaluated = model.engine.forward.counts.rows - rows;
  const reply = await model.chat(messages, { temperature: 0 });
  assertEquals(second, reply.text);
  assert(second.includes("Grace"));
  assert(evaluated < reply.usage.promptTokens, "only the new turn was computed");
});

Deno.test("a thought that the template leaves out of the past makes the timeline go back, not go wrong", async () => {
  await using model = await load("tiny", EXACT);
  using session = model.session();
  await session.append([{ role: "user", content: "What is 58 + 67?" }], { thinking: true });
  await Array.fromAsync(session.generate({ temperature: 0 }));
  await session.append([{ role: "user", content: "What is 27 + 45?" }]);
  const text = model.tokenizer.decode(session.ids);
  const messages: Message[] = [
    { role: "user", content: "What is 58 + 67?" },
    { role: "assistant", content: "125" },
    { role: "user", content: "What is 27 + 45?" },
  ];
  assertEquals(text, model.renderChat(messages, { thinking: true }));
  const ids = await Array.fromAsync(session.generate({ temperature: 0, maxTokens: 60 }));
  const reply = await model.chat(messages, { temperature: 0, thinking: true, maxTokens: 60 });
  assertEquals(ids.length, reply.usage.completionTokens);
});

Deno.test("what a caller does to its messages after appending them does not change the past", async () => {
  await using model = await load("tiny", EXACT);
  using session = model.session();
  const message: Message = { role: "user", content: "My name is Grace." };
  await session.append([message]);
  message.content = "My name is Bob.";
  await Array.fromAsync(session.generate({ temperature: 0 }));
  const before = session.ids;
  await assertRejects(() => session.append([null] as never), InvalidArgument, "Message");
  assertEquals(session.ids, before);
  await session.append([{ role: "user", content: "What is my name?" }]);
  assertEquals(session.ids.slice(0, before.length), before);
  const answer = await Array.fromAsync(session.generate({ temperature: 0 }));
  assertEquals(model.tokenizer.decode(answer, { skipSpecial: true }), "Your name is Grace.");
});

Deno.test("appending beyond the context is refused with the numbers and changes nothing", async () => {
  await using model = await load("tiny", { ...EXACT, contextLength: 64 });
  using session = model.session();
  await session.append(prompt(60));
  const error = await assertRejects(() => session.append([5, 6, 7, 8, 9]), ContextFull);
  assertEquals([error.tokens, error.contextLength], [65, 64]);
  const words = [{ role: "user" as const, content: "word ".repeat(10) }];
  await assertRejects(() => session.append(words), ContextFull);
  assertEquals(session.ids, prompt(60));
  assertEquals((await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 9 }))).length, 4);
});

Deno.test("a message of more tokens than a call can have arguments is refused with the numbers, everywhere", async () => {
  await using model = await load("tiny", EXACT);
  const messages = [{ role: "user" as const, content: "word ".repeat(200_000) }];
  using session = model.session();
  for (
    const call of [
      () => model.chat(messages),
      () => model.complete(messages[0].content),
      () => session.append(messages),
      () => session.append(new Array(300_000).fill(5)),
    ]
  ) {
    const { tokens } = await assertRejects(call, ContextFull);
    assert(tokens > 200_000, `${tokens}`);
  }
});

Deno.test("a session appends more ids at once than a call can have arguments", async () => {
  await using model = await load("tiny", { ...EXACT, contextLength: 300_000 });
  using session = model.session();
  await session.append(new Uint32Array(250_000).fill(5));
  assertEquals(session.ids.length, 250_000);
});

Deno.test("a session that ended its reply early gives back the cache that the rest would have taken", async () => {
  await using model = await loadWith(fixtureModel("e2b")!, { ...EXACT, contextLength: 512 }, {
    kvPages: 20,
    keptPrefixes: 0,
  });
  using first = model.session(), second = model.session();
  await first.append(prompt(20));
  const running = first.generate({ ...GREEDY, maxTokens: 400 });
  await running.next();
  await second.append(prompt(30));
  await assertRejects(() => second.generate({ ...GREEDY, maxTokens: 400 }).next(), MemoryLimit);
  await running.return();
  assertEquals((await Array.fromAsync(second.generate({ ...GREEDY, maxTokens: 400 }))).length, 400);
});

Deno.test("a session refuses a second generation, appends of nothing, and use after disposal", async () => {
  await using model = await loadWith(fixtureModel("e2b")!, EXACT, { keptPrefixes: 0 });
  const session = model.session();
  await assertRejects(() => session.generate().next(), InvalidArgument, "no token");
  await assertRejects(() => session.append([]), InvalidArgument);
  await assertRejects(() => session.append([99999]), InvalidArgument);
  await session.append(prompt(10));
  const running = session.generate(GREEDY);
  await running.next();
  await assertRejects(() => session.generate().next(), InvalidArgument, "under way");
  await assertRejects(() => session.append([5]), InvalidArgument, "under way");
  assertThrows(() => session.fork(), InvalidArgument, "under way");
  await running.return();
  await session.append([5]);
  assertEquals(session.ids.length, 12);

  const last = session.generate(GREEDY);
  await last.next();
  session[Symbol.dispose]();
  await assertRejects(() => last.next(), Disposed, "session");
  assertEquals(model.memory().kvUsed, 0);
  session[Symbol.dispose]();
  await assertRejects(() => session.append([5]), Disposed);
  await assertRejects(() => session.generate().next(), Disposed);
  await assertRejects(() => session.save("nowhere"), Disposed);
  assertThrows(() => session.fork(), Disposed);
});

Deno.test("disposing a session ends its generation and gives the cache back, whether somebody reads on or not", async () => {
  await using model = await loadWith(fixtureModel("e2b")!, EXACT, { keptPrefixes: 0 });
  const session = model.session();
  await session.append(prompt(10));
  const unread = session.generate(GREEDY);
  await unread.next();
  session[Symbol.dispose]();
  for (let i = 0; i < 1000 && model.memory().kvUsed > 0; i++) {
    await new Promise((next) => setTimeout(next, 1));
  }
  assertEquals(model.memory().kvUsed, 0);
  await assertRejects(() => unread.next(), Disposed, "session");
});

Deno.test("a session that is disposed while it is saved is in the file; one that is restored meanwhile says that it is gone", async () => {
  await using model = await loadWith(fixtureModel("e2b")!, EXACT, { keptPrefixes: 0 });
  const path = await Deno.makeTempFile();
  const saved = model.session();
  await saved.append(prompt(10));
  await Array.fromAsync(saved.generate({ ...GREEDY, maxTokens: 3 }));
  const saving = saved.save(path);
  saved[Symbol.dispose]();
  await saving;
  assertEquals(model.memory().kvUsed, 0);
  const gone = model.session();
  const restoring = gone.restore(path);
  gone[Symbol.dispose]();
  await assertRejects(() => restoring, Disposed, "session");
  assertEquals(model.memory().kvUsed, 0);
  using restored = model.session();
  await restored.restore(path);
  assertEquals(restored.ids, saved.ids);
  await Deno.remove(path);
});

Deno.test("disposing a model ends its sessions", async () => {
  const model = await load(fixtureModel("e2b")!, EXACT);
  const session = model.session();
  await session.append(prompt(10));
  const running = session.generate(GREEDY);
  await running.next();
  await model[Symbol.asyncDispose]();
  await assertRejects(() => running.next(), Disposed);
  await assertRejects(() => session.append([5]), Disposed);
});
