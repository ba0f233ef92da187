import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { ContextFull, Disposed, InvalidArgument, load, MemoryLimit, type Message } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import { EXACT, idsOf } from "../support/calls.ts";
import { fixtureModel, TINY } from "../support/models.ts";

const GREEDY = { temperature: 0, ignoreEos: true } as const;

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
    await session.append(idsOf(100));
    const first = await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 10 }));
    const second = await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 5 }));
    assertEquals(
      [...first, ...second],
      await Array.fromAsync(model.generate(idsOf(100), { ...GREEDY, maxTokens: 15 })),
    );
    await session.append(idsOf(40, 9));
    const third = await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 6 }));
    const whole = [...idsOf(100), ...first, ...second, ...idsOf(40, 9)];
    assertEquals(third, await Array.fromAsync(model.generate(whole, { ...GREEDY, maxTokens: 6 })));
    assertEquals(session.ids, [...whole, ...third]);
  });
});

Deno.test("forks share a past, and none sees what the others do afterwards", async () => {
  await withModels(async (model) => {
    using session = model.session();
    await session.append(idsOf(77));
    const past = [...idsOf(77), ...await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 4 }))];
    using left = session.fork();
    using right = session.fork();
    await left.append(idsOf(10, 50));
    await right.append(idsOf(20, 90));
    const [a, b, c] = await Promise.all(
      [left, right, session].map((each) => Array.fromAsync(each.generate({ ...GREEDY, maxTokens: 8 }))),
    );
    const fresh = (ids: number[]) => Array.fromAsync(model.generate(ids, { ...GREEDY, maxTokens: 8 }));
    assertEquals(a, await fresh([...past, ...idsOf(10, 50)]));
    assertEquals(b, await fresh([...past, ...idsOf(20, 90)]));
    assertEquals(c, await fresh(past));
  });
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
  await session.append(idsOf(60));
  const error = await assertRejects(() => session.append([5, 6, 7, 8, 9]), ContextFull);
  assertEquals([error.tokens, error.contextLength], [65, 64]);
  const words = [{ role: "user" as const, content: "word ".repeat(10) }];
  await assertRejects(() => session.append(words), ContextFull);
  assertEquals(session.ids, idsOf(60));
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
  await first.append(idsOf(20));
  const running = first.generate({ ...GREEDY, maxTokens: 400 });
  await running.next();
  await second.append(idsOf(30));
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
  await session.append(idsOf(10));
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
  await session.append(idsOf(10));
  const unread = session.generate(GREEDY);
  await unread.next();
  session[Symbol.dispose]();
  for (let i = 0; i < 1000 && model.memory().kvUsed > 0; i++) {
    await new Promise((next) => setTimeout(next, 1));
  }
  assertEquals(model.memory().kvUsed, 0);
  await assertRejects(() => unread.next(), Disposed, "session");
});

Deno.test("disposing a model ends its sessions", async () => {
  const model = await load(fixtureModel("e2b")!, EXACT);
  const session = model.session();
  await session.append(idsOf(10));
  const running = session.generate(GREEDY);
  await running.next();
  await model[Symbol.asyncDispose]();
  await assertRejects(() => running.next(), Disposed);
  await assertRejects(() => session.append([5]), Disposed);
});
