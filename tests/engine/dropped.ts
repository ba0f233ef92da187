/** Run by dropped_test.ts with --v8-flags=--expose-gc: prints "given back" when what was dropped half-way is, and nothing else. */
import { assert, assertEquals } from "@std/assert";
import { loadWith } from "../../src/engine/load.ts";
import { EXACT, user } from "../support/calls.ts";
import { TINY } from "../support/models.ts";

declare const gc: () => void;

const CONTEXT = 640;
/** Room for two sequences of a whole context. */
const PAGES = 2 * CONTEXT / 32;
const STORY = { temperature: 0, maxTokens: 500, logitBias: { 1: -100, 9: -100, 16: -100 } }; // without an end
await using model = await loadWith(TINY, { ...EXACT, contextLength: CONTEXT }, {
  keptPrefixes: 0,
  kvPages: PAGES,
});

/** Collects until no page is used any more, or for about a second. */
async function used(): Promise<number> {
  for (let i = 0; i < 100 && model.memory().kvUsed > 0; i++) {
    gc();
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return model.memory().kvUsed;
}

/** Leaves behind what `begin` made, with pages and promises. */
async function drop(begin: () => Promise<unknown>): Promise<void> {
  await begin();
  assert(model.memory().kvUsed > 0);
}

const cases: [string, () => Promise<unknown>][] = [
  ["a stream", () => model.stream(user("Tell me a story."), STORY).next()],
  ["a generation", () => model.generate([2, 300, 301], STORY).next()],
  ["a session", async () => {
    const session = model.session();
    await session.append([2, 300, 301]);
    for await (const _ of session.generate({ ...STORY, maxTokens: 3 }));
  }],
  ["a session with its generation", async () => {
    const session = model.session();
    await session.append([2, 300, 301]);
    await session.generate(STORY).next();
  }],
  ["a session and its fork", async () => {
    const session = model.session();
    await session.append([2, 300, 301]);
    for await (const _ of session.generate({ ...STORY, maxTokens: 40 }));
    session.fork();
  }],
];
for (const [what, begin] of cases) {
  await drop(begin);
  assertEquals(await used(), 0, what);
  // Promises too: two sequences of a whole context would not fit beside one.
  await Promise.all([1, 2].map(() => model.complete("The", { ...STORY, maxTokens: CONTEXT - 40 })));
}

// A session that is held is free again, with the tokens that were given out, and goes on like one that ended its generation.
{
  using held = model.session();
  await held.append([2, 300, 301]);
  const given = await (async () => {
    const iterator = held.generate(STORY);
    return [(await iterator.next()).value as number, (await iterator.next()).value as number];
  })();
  const isFree = async () => {
    try {
      held.fork()[Symbol.dispose]();
      return true;
    } catch {
      gc();
      await new Promise((resolve) => setTimeout(resolve, 10));
      return false;
    }
  };
  for (let i = 0; i < 200 && !await isFree(); i++);
  assertEquals(held.ids, [2, 300, 301, ...given]);
  const rest = await Array.fromAsync(held.generate({ ...STORY, maxTokens: 20 }));
  assertEquals(
    [...given, ...rest],
    await Array.fromAsync(model.generate([2, 300, 301], { ...STORY, maxTokens: 22 })),
  );
}
assertEquals(await used(), 0);

// What is still in use stays as it is, however much is collected meanwhile.
const kept = model.session();
await kept.append([2, 300, 301]);
const alone: number[] = await Array.fromAsync(model.generate([2, 300, 301], { ...STORY, maxTokens: 200 }));
await drop(() => model.generate([2, 400, 401], { ...STORY, maxTokens: 100 }).next());
const ids: number[] = [];
for await (const id of kept.generate({ ...STORY, maxTokens: 200 })) {
  ids.push(id);
  if (ids.length % 20 > 0) continue;
  gc();
  await new Promise((resolve) => setTimeout(resolve, 0));
}
assertEquals(ids, alone);
kept[Symbol.dispose]();
assertEquals(await used(), 0);
console.log("given back");
