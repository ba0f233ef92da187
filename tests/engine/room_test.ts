/** Where context and cache end: refusals with numbers, replies that are cut off, and nobody else disturbed. */
import { assert, assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { ContextFull, load, MarkbaseError } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import { EXACT, generated, user } from "../support/calls.ts";
import { TINY } from "../support/models.ts";

Deno.test("a prompt beyond the context is refused with the numbers; a reply that fills it ends with length", async () => {
  await using model = await load("tiny", { ...EXACT, contextLength: 64 });
  assertEquals(model.contextLength, 64);
  const ids = Array.from({ length: 64 }, (_, i) => 300 + i);
  const error = await assertRejects(() => model.generate(ids).next(), ContextFull, "64");
  assertEquals([error.tokens, error.contextLength], [65, 64]);
  await assertRejects(() => model.logits([...ids, 5]), ContextFull);
  assertEquals((await model.logits(ids)).length, 1536);
  const reply = await model.complete("One", {
    maxTokens: 500,
    temperature: 0,
    logitBias: { 1: -100, 16: -100, 9: -100 },
  });
  assertEquals(reply.finishReason, "length");
  assertEquals(reply.usage.promptTokens + reply.usage.completionTokens, 64);
  assertEquals(reply.warnings.map((warning) => warning.code), ["context_full"]);
});

Deno.test("a request that the cache cannot hold is refused, and running ones are not disturbed", async () => {
  await using model = await loadWith(TINY, { ...EXACT, contextLength: 512 }, {
    kvPages: 24,
    keptPrefixes: 0,
  });
  const ids = (length: number) => Array.from({ length }, (_, i) => 300 + i % 1000);
  const options = { temperature: 0, maxTokens: 200, ignoreEos: true };
  const running = model.generate(ids(300), options);
  const first = [(await running.next()).value];
  const error = await assertRejects(() => model.generate(ids(400), options).next(), MarkbaseError, "bytes");
  assertEquals(error.code, "memory_limit");
  for (const way of ["batch()", "maxTokens", "sessions"]) assertStringIncludes(error.message, way);
  for await (const id of running) first.push(id);
  assertEquals(first.length, 200);
  assertEquals(first, await generated(model, ids(300), options));
});

Deno.test("sixteen calls that name no maxTokens have room at the same time, however long the context", async () => {
  await using model = await load(TINY, { ...EXACT, contextLength: 131_072 });
  const calls = Array.from(
    { length: 16 },
    (_, i) => model.generate([2, 300 + i], { temperature: 0, ignoreEos: true }),
  );
  const first = await Promise.all(calls.map((call) => call.next()));
  assertEquals(first.map(({ done }) => done), calls.map(() => false));
  await Promise.all(calls.map((call) => call.return()));
});

Deno.test("a reply that has begun never fails for lack of pages, whoever shares its prefix", async () => {
  await using model = await loadWith(TINY, { ...EXACT, contextLength: 256 }, {
    kvPages: 12,
    keptPrefixes: 4,
    chunkRows: 16,
  });
  let replies = 0, refused = 0;
  const worker = async (worker: number) => {
    for (let i = 0; i < 12; i++) {
      const length = (worker * 37 + i * 23) % 60;
      const ids = [2, 105, ...new Array(length).fill(300 + (worker + i) % 3)];
      const maxTokens = 1 + (worker * 29 + i * 31) % 60;
      const tokens: number[] = [];
      try {
        for await (const id of model.generate(ids, { maxTokens, ignoreEos: true, seed: i % 3 })) {
          tokens.push(id);
        }
        assertEquals(tokens.length, maxTokens);
        replies++;
      } catch (error) {
        assert(
          error instanceof MarkbaseError && error.code === "memory_limit" && tokens.length === 0,
          `${error}`,
        );
        refused++;
        await new Promise((resolve) => setTimeout(resolve, 2));
      }
    }
  };
  await Promise.all(Array.from({ length: 6 }, (_, i) => worker(i)));
  assert(replies > 20 && refused > 0, `${replies} replies, ${refused} refused`);
});

Deno.test("a reply without maxTokens that outgrows the cache is cut off with a warning, and ids end with the error", async () => {
  const kvPages = 44; // of 32 tokens: one such reply fits, two do not
  await using model = await loadWith(TINY, { ...EXACT, contextLength: 2048 }, { kvPages, keptPrefixes: 0 });
  const endless = { temperature: 0, logitBias: { 300: 1e6 } };
  using other = model.session();
  await other.append([2, 15, 374]);
  const held = other.generate({ ...endless, maxTokens: 64, ignoreEos: true });
  await held.next();
  const reply = await model.complete("The", endless);
  assertEquals(reply.finishReason, "length");
  assertEquals(reply.usage.completionTokens, 1024);
  assertEquals(reply.warnings.map((warning) => warning.code), ["memory_limit"]);
  const ids: number[] = [];
  const error = await assertRejects(async () => {
    for await (const id of model.generate([2, 15, 374], endless)) ids.push(id);
  }, MarkbaseError);
  assertEquals([error.code, ids.length], ["memory_limit", 1024]);
  let rest = 1;
  for await (const _ of held) rest++;
  assertEquals(rest, 64);
});

Deno.test("memory() accounts for mapped weights, the cache and what of it is in use", async () => {
  await using model = await load("tiny");
  const before = model.memory();
  assert(before.weights > 5e6 && before.mapped === before.weights && before.copied === 0);
  assert(before.kv > 0 && before.kvUsed === 0 && before.activations > 0 && before.peak >= before.kv);
  await model.chat(user("Hi"), { maxTokens: 2 });
  assert(model.memory().kvUsed > 0, "the prefix cache keeps pages");
});
