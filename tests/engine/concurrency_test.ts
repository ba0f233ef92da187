/** Many calls of one model at once: equal to calls alone, aborted, left early, disposed. */
import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { Pass } from "../../ffi/pass.ts";
import {
  DeviceError,
  Disposed,
  InvalidArgument,
  load,
  type LoadOptions,
  MarkbaseError,
  MemoryLimit,
} from "../../mod.ts";
import { Admission } from "../../src/engine/batch.ts";
import { type Internals, loadWith } from "../../src/engine/load.ts";
import { EXACT, generated, QUESTIONS, user } from "../support/calls.ts";
import { maxDifference, TINY } from "../support/models.ts";

/** The shipped model, whose pages are all free when no call is under way. */
function loadForgetful(options: LoadOptions = {}, internals: Internals = {}) {
  return loadWith(TINY, { ...EXACT, ...options }, { keptPrefixes: 0, ...internals });
}

/** A signal that aborts after some milliseconds, and its reason. */
function abortAfter(milliseconds: number): { signal: AbortSignal; reason: Error } {
  const controller = new AbortController();
  const reason = new Error("enough");
  setTimeout(() => controller.abort(reason), milliseconds);
  return { signal: controller.signal, reason };
}

/** Awaits a rejection with this very value. */
async function assertRejectsWith(promise: Promise<unknown>, reason: unknown): Promise<void> {
  assertEquals(await promise.catch((error) => error), reason);
}

Deno.test("replies that run at the same time equal those that run alone", async () => {
  await using model = await load("tiny", EXACT);
  const alone: string[] = [];
  {
    await using fresh = await loadForgetful();
    for (const question of QUESTIONS) alone.push((await fresh.chat(user(question), { temperature: 0 })).text);
  }
  const together = await Promise.all(
    QUESTIONS.map((question) => model.chat(user(question), { temperature: 0 })),
  );
  assertEquals(together.map((reply) => reply.text), alone);
  const batch = await model.batch(QUESTIONS.map((question) => user(question)), { temperature: 0 });
  assertEquals(batch.map((reply) => reply.text), alone);
});

Deno.test("two streams that one loop reads in turn do not wait for each other", async () => {
  await using model = await load("tiny", EXACT);
  const streams = QUESTIONS.slice(0, 3).map((question) => model.stream(user(question), { temperature: 0 }));
  const texts = ["", "", ""];
  for (let open = 3; open > 0;) {
    for (const [i, stream] of streams.entries()) {
      const { value, done } = await stream.next();
      if (value?.type === "text") texts[i] += value.text;
      if (value?.type === "done") open--;
      if (done) continue;
    }
  }
  assertEquals(texts[0], "72");
  assertEquals(texts[1], "The capital of Japan is Tokyo.");
});

Deno.test("an aborted call rejects with the signal's reason, before, while queued and while computing", async () => {
  await using model = await loadForgetful({ contextLength: 2048 });
  const reason = new Error("enough");
  await assertRejectsWith(model.chat(user("Hi"), { signal: AbortSignal.abort(reason) }), reason);

  const long = Array.from({ length: 2000 }, (_, i) => 300 + i % 1000);
  const running = new AbortController(), queued = new AbortController();
  const a = model.logits(long, { signal: running.signal });
  const b = model.logits(long, { signal: queued.signal });
  queued.abort(reason);
  await assertRejectsWith(b, reason);
  setTimeout(() => running.abort(reason), 3);
  await assertRejectsWith(a, reason);

  const streaming = new AbortController();
  const texts: string[] = [];
  const streamed = async () => {
    for await (
      const part of model.stream(user("Tell me a short story."), { temperature: 0, signal: streaming.signal })
    ) {
      if (part.type === "text" && texts.push(part.text) === 3) streaming.abort(reason);
    }
  };
  await assertRejectsWith(streamed(), reason);
  assertEquals(texts.length, 3);
  assertEquals(model.memory().kvUsed, 0, "aborted calls gave their pages back");
  assertEquals((await model.chat(user("What is 27 + 45?"), { temperature: 0 })).text, "72");
});

Deno.test("timers have their turns between the tokens of a stream, however short its forwards are", async () => {
  await using model = await load("tiny", { ...EXACT, contextLength: 2048 });
  let turns = 0, tokens = 0;
  const controller = new AbortController();
  const reason = new Error("enough");
  const timer = setInterval(() => {
    if (tokens > 0 && ++turns === 5) controller.abort(reason);
  }, 0);
  const options = { temperature: 0, ignoreEos: true, maxTokens: 2000, signal: controller.signal };
  const generating = async () => {
    for await (const _ of model.generate([2, 300, 301], options)) tokens++;
  };
  await assertRejectsWith(generating(), reason).finally(() => clearInterval(timer));
  assert(tokens < 2000, `${tokens} tokens, ${turns} turns`);
});

Deno.test("a chunk that the device gives up on is run again once with half the rows, and a warning says so", async () => {
  await using model = await loadForgetful();
  // As many rows as a chunk has on the slowest machine.
  const ids = Array.from({ length: 256 }, (_, i) => 300 + i);
  const expected = await model.logits(ids);
  const { run } = Pass.prototype;
  let failures = 1;
  const rowsSeen: number[] = [];
  Pass.prototype.run = function (input, ...rest) {
    rowsSeen.push(new Uint32Array(input.buffer, input.byteOffset, 3)[2]);
    if (failures-- > 0) return Promise.reject(new DeviceError("timeout", "The device gave up."));
    return run.call(this, input, ...rest);
  };
  try {
    assertEquals(maxDifference(await model.logits(ids), expected), 0);
    assertEquals(rowsSeen, [256, 128, 128]);
    assertEquals(model.warnings.map((warning) => warning.code), ["chunk_halved"]);
    failures = 2;
    const error = await assertRejects(() => model.logits(ids), DeviceError);
    assertEquals(error.code, "timeout");
  } finally {
    Pass.prototype.run = run;
  }
  assertEquals(model.memory().kvUsed, 0);
});

Deno.test("leaving a stream early gives its pages back", async () => {
  await using model = await loadForgetful();
  for await (const part of model.stream(user("Tell me a short story."))) if (part.type === "text") break;
  for await (const _ of model.generate([2, 15, 374])) break;
  assertEquals(model.memory().kvUsed, 0);
});

Deno.test("while a reader has a token the forward after it runs, but no other, and it is given up with the reader", async () => {
  await using model = await loadWith(TINY, EXACT, { keptPrefixes: 0 });
  const { counts } = model.engine.forward;
  const prompt = [2, 15, 374], options = { temperature: 0, ignoreEos: true, maxTokens: 12 };
  const expected = await generated(model, prompt, options);
  const idle = () => new Promise((resolve) => setTimeout(resolve, 10));

  const stream = model.generate(prompt, options);
  const before = counts.forwards;
  const ids = [(await stream.next()).value!];
  for (let i = 0; i < 3; i++) {
    // That of the token before and the one ahead.
    for (let turn = 0; turn < 1000 && counts.forwards < before + 2 + i; turn++) await idle();
    await idle();
    assertEquals(counts.forwards, before + 2 + i);
    ids.push((await stream.next()).value!);
  }
  assertEquals(ids, expected.slice(0, 4));
  await stream.return();
  assertEquals(model.memory().kvUsed, 0);

  // A session left after each token, while the forward ahead waits, runs or has ended, goes on as if it had not been left.
  for (const pause of [() => Promise.resolve(), idle]) {
    using session = model.session();
    await session.append(prompt);
    const found: number[] = [];
    while (found.length < 12) {
      for await (const id of session.generate({ ...options, maxTokens: 12 })) {
        found.push(id);
        await pause();
        break;
      }
      assertEquals(session.ids, [...prompt, ...found]);
    }
    assertEquals(found, expected);
  }
  assertEquals(model.memory().kvUsed, 0);
  // The last token of a reply has none ahead.
  const end = counts.forwards;
  await generated(model, prompt, options);
  await idle();
  assertEquals(counts.forwards, end + 12);
});

Deno.test("a stream that is left beside others takes nothing from them, and its pages come back", async () => {
  await using model = await loadWith(TINY, EXACT, { keptPrefixes: 0 });
  const prompt = (n: number) => [2, 15 + n, 374];
  const options = { temperature: 0, ignoreEos: true, maxTokens: 20 };
  const expected = await generated(model, prompt(0), options);
  const [kept, ...left] = [0, 1, 2, 3].map((n) => model.generate(prompt(n), options));
  const ids: number[] = [];
  for (const stream of left) await stream.next();
  for await (const id of kept) {
    ids.push(id);
    if (ids.length % 4 === 0) await left.pop()?.return(); // its next forward waits or runs
  }
  assertEquals(ids, expected);
  assertEquals(left.length, 0);
  assertEquals(model.memory().kvUsed, 0);
});

Deno.test("a batch keeps the order of its requests and mixes conversations with texts", async () => {
  await using model = await load("tiny", EXACT);
  const replies = await model.batch([
    user("What is 27 + 45?"),
    { prompt: "The capital of Japan", maxTokens: 4 },
    { messages: user("What is the capital of Japan?"), maxTokens: 3 },
  ], { temperature: 0 });
  assertEquals(replies[0].text, "72");
  assertEquals(replies[1].usage.completionTokens, 4);
  assertEquals(replies[2].finishReason, "length");
  assertEquals(await model.batch([]), []);
  await assertRejects(() => model.batch([user("Hi"), { nothing: 1 } as never]), MarkbaseError, "Request 1");
});

Deno.test("after disposal every call throws Disposed, and calls under way end with it", async () => {
  const model = await load("tiny", { ...EXACT, contextLength: 2048 });
  const running = model.logits(Array.from({ length: 2000 }, (_, i) => 300 + i % 1000));
  const stream = model.stream(user("Tell me a short story."));
  const others = [
    model.chat(user("Tell me a short story.")),
    model.hidden([2, 15, 374]),
    model.complete("The"),
    model.batch([user("Hi"), user("What is 2 + 2?")]),
  ];
  const { run } = Pass.prototype;
  Pass.prototype.run = function (...given) { // the first forward of all these
    queueMicrotask(() => model[Symbol.dispose]());
    return run.apply(this, given);
  };
  try {
    await assertRejects(() => running, Disposed, "model");
  } finally {
    Pass.prototype.run = run;
  }
  await assertRejects(() => stream.next(), Disposed, "model");
  for (const other of others) await assertRejects(() => other, Disposed, "A model");
  await assertRejects(() => model.chat(user("Hi")), Disposed);
  await assertRejects(() => model.logits([2]), Disposed);
  await assertRejects(() => model.generate([2]).next(), Disposed);
  await assertRejects(() => model.hidden([2]), Disposed);
  assertThrows(() => model.session(), Disposed);
  assertThrows(() => model.memory(), Disposed);
  model[Symbol.dispose]();
  await model[Symbol.asyncDispose]();
});

Deno.test("a short prompt that comes while a long one is computed does not wait for its end, nor do two long ones", async () => {
  await using model = await loadForgetful({ contextLength: 4096 }, { chunkRows: 64 });
  const ids = (count: number, seed: number) =>
    Array.from({ length: count }, (_, i) => 3 + (i * 31 + seed) % 900);
  const done: string[] = [];
  const ask = async (name: string, prompt: number[]) => {
    await generated(model, prompt, { maxTokens: 1, temperature: 0, ignoreEos: true });
    done.push(name);
  };
  const long = [ask("long", ids(3000, 1))];
  while (model.engine.forward.counts.rows === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  long.push(ask("second", ids(2000, 2)));
  await ask("short", ids(20, 3));
  assertEquals(done, ["short"]);
  await Promise.all(long);
  // They take turns, so the second, which is shorter, ends first although it came later.
  assertEquals(done, ["short", "second", "long"]);
});

Deno.test("more streams than a forward has rows for go on side by side", async () => {
  await using model = await loadForgetful({}, { kvPages: 600 });
  const counts = new Array<number>(40).fill(0);
  let widest = 0;
  await Promise.all(counts.map(async (_, i) => {
    const ids = [2, 300 + i, 400 + i];
    for await (const _ of model.generate(ids, { temperature: 0, maxTokens: 30, ignoreEos: true })) {
      counts[i]++;
      if (Math.max(...counts) < 30) widest = Math.max(widest, Math.max(...counts) - Math.min(...counts));
    }
  }));
  assertEquals(counts, counts.map(() => 30));
  // Forty streams take turns in forwards of sixteen; those that began first may be one round ahead.
  assert(widest <= 4, `${widest} tokens between the first and the last`);
});

Deno.test("a request of a batch that fails has its error in its place, and the others their replies", async () => {
  await using model = await load("tiny", { ...EXACT, contextLength: 128 });
  const long = "word ".repeat(200);
  const replies = await model.batch([
    user("What is 27 + 45?"),
    { prompt: long },
    { messages: user("What is 8 times 7?"), maxTokens: -1 },
    user("What is the capital of Japan?"),
  ], { temperature: 0 });
  assertEquals(replies.map(({ text }) => text), ["72", "", "", "The capital of Japan is Tokyo."]);
  assertEquals(replies.map(({ error }) => error?.code), [
    undefined,
    "context_full",
    "invalid_argument",
    undefined,
  ]);
  assertEquals(replies.map(({ finishReason }) => finishReason), ["stop", "error", "error", "stop"]);
  await assertRejects(() => model.batch([user("Hi"), , user("Hi")] as never), InvalidArgument, "Request 1");
});

Deno.test("a batch larger than the cache waits for room rather than fail", async () => {
  await using model = await loadForgetful({ contextLength: 256 }, { kvPages: 20 });
  const requests = Array.from({ length: 24 }, () => user("What is 27 + 45?"));
  const replies = await model.batch(requests, { temperature: 0, maxTokens: 200 });
  assertEquals(replies.map(({ text }) => text), requests.map(() => "72"));
});

Deno.test("a request that failed for lack of room is run again where others have left by the time that this is known", async () => {
  const full = () => new MemoryLimit("The cache", 2, 1, "");
  const later = async () => {
    for (let turn = 0; turn < 5; turn++) await null;
  };
  // The other ends while the failure is on its way.
  const one = new Admission();
  const other = Promise.withResolvers<string>();
  let tries = 0;
  const first = one.admit(() => other.promise);
  const second = one.admit(async () => {
    if (++tries > 1) return "second";
    other.resolve("first");
    await later();
    throw full();
  });
  assertEquals([await first, await second, tries], ["first", "second", 2]);

  // Two fail for each other: one of them goes on alone, then the other.
  const two = new Admission();
  let held = 0;
  const greedy = (name: string) =>
    two.admit(async () => {
      held++;
      try {
        await later();
        if (held > 1) throw full();
        return name;
      } finally {
        await later();
        held--;
      }
    });
  assertEquals(await Promise.all(["a", "b", "c"].map(greedy)), ["a", "b", "c"]);

  // What is alone from its beginning fails, and once.
  tries = 0;
  const alone = two.admit(() => Promise.reject(full()).finally(() => tries++));
  await assertRejects(() => alone, MemoryLimit);
  assertEquals(tries, 1);
});

Deno.test("an aborted batch rejects with the signal's reason and leaves nothing behind", async () => {
  await using model = await loadForgetful();
  const { signal, reason } = abortAfter(10);
  const requests = Array.from({ length: 30 }, () => user("Tell me a short story."));
  await assertRejectsWith(model.batch(requests, { signal }), reason);
  assertEquals(model.memory().kvUsed, 0);
});

Deno.test("a request of a batch whose own signal aborts fails alone, and the others have their replies", async () => {
  await using model = await loadForgetful();
  const { signal, reason } = abortAfter(5);
  const story = { messages: user("Tell me a short story."), maxTokens: 400, logitBias: { 16: -100 } };
  const replies = await model.batch([
    { messages: user("What is 27 + 45?") },
    { ...story, signal },
    { prompt: "One", signal: AbortSignal.abort(reason) },
    { messages: user("What is the capital of Japan?"), signal: new AbortController().signal },
  ], { temperature: 0 });
  assertEquals(replies.map(({ text }) => text), ["72", "", "", "The capital of Japan is Tokyo."]);
  assertEquals(replies.map(({ error }) => error?.code), [undefined, "aborted", "aborted", undefined]);
  assertEquals(replies[1].error?.cause, reason);
  assertEquals(model.memory().kvUsed, 0);
});

Deno.test("the signal of a batch ends also the requests that have a signal of their own", async () => {
  await using model = await loadForgetful();
  const { signal, reason } = abortAfter(10);
  const own = { messages: user("Tell me a short story."), signal: new AbortController().signal };
  const requests = Array.from({ length: 30 }, () => own);
  await assertRejectsWith(model.batch(requests, { signal }), reason);
  const wrong = { ...own, signal: "soon" as never };
  const [reply] = await model.batch([wrong], { signal: new AbortController().signal });
  assertEquals(reply.error?.code, "invalid_argument");
  await assertRejectsWith(model.batch([], { signal: AbortSignal.abort(reason) }), reason);
});

Deno.test("an option of a request that is undefined leaves the one of its batch", async () => {
  await using model = await load("tiny", EXACT);
  const request = { messages: user("Tell me a short story."), maxTokens: undefined, temperature: undefined };
  const [reply] = await model.batch([request], { maxTokens: 3, temperature: 0 });
  assertEquals(reply.usage.completionTokens, 3);
});
