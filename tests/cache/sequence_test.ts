import { assert, assertEquals, assertThrows } from "@std/assert";
import { pagesAtOnce, Sequence } from "../../src/cache/sequence.ts";
import { MemoryLimit } from "../../src/errors.ts";
import { checkReads, count, GROUPS, Slots } from "./slots.ts";

Deno.test("a sequence keeps all full pages and lets sliding pages go once no later token can see them", () => {
  const store = new Slots(64);
  const sequence = new Sequence(store);
  store.write(sequence, count(0, 300));
  for (let i = 300; i < 500; i++) store.write(sequence, [i]);
  checkReads(store, sequence, count(0, 500));
  assertEquals(sequence.tables[1].pages.length, 16);
  assert(sequence.tables[0].pages.length <= pagesAtOnce(GROUPS[0], 500, 1));
  sequence.dispose();
  assertEquals(store.pools.map((pool) => pool.free), [64, 64]);
});

Deno.test("a fork reads the same tokens, and neither sees what the other writes afterwards", () => {
  const store = new Slots(64);
  const a = new Sequence(store);
  store.write(a, count(0, 77));
  const b = a.fork();
  store.write(a, count(1000, 40));
  store.write(b, count(2000, 90));
  checkReads(store, a, [...count(0, 77), ...count(1000, 40)]);
  checkReads(store, b, [...count(0, 77), ...count(2000, 90)]);
  a.dispose();
  checkReads(store, b, [...count(0, 77), ...count(2000, 90)]);
  b.dispose();
  assertEquals(store.pools.map((pool) => pool.free), [64, 64]);
});

Deno.test("a sequence can always go back by up to 32 tokens, and says where it cannot", () => {
  const store = new Slots(64);
  const sequence = new Sequence(store);
  for (let i = 0; i < 400; i++) store.write(sequence, [i]);
  for (const back of [1, 16, 32]) assert(sequence.canTruncate(sequence.length - back));
  assert(!sequence.canTruncate(200));
  assertThrows(() => sequence.truncate(200), RangeError);
  sequence.truncate(370);
  checkReads(store, sequence, count(0, 370));
  store.write(sequence, count(5000, 50));
  checkReads(store, sequence, [...count(0, 370), ...count(5000, 50)]);
});

Deno.test("a reservation lets a sequence grow to its length whatever others take", () => {
  const store = new Slots(20);
  const reserved = new Sequence(store), greedy = new Sequence(store);
  reserved.reserve(400, 1);
  assertThrows(() => {
    for (let i = 0; i < 1000; i++) store.write(greedy, [i]);
  }, MemoryLimit);
  for (let i = 0; i < 400; i++) store.write(reserved, [i]);
  checkReads(store, reserved, count(0, 400));
  checkReads(store, greedy, count(0, greedy.length));
  reserved.dispose();
  greedy.dispose();
  assertEquals(store.pools.map((pool) => [pool.free, pool.reserved]), [[20, 0], [20, 0]]);
});

Deno.test("a reservation that does not fit is refused with the numbers and promises nothing", () => {
  const store = new Slots(10);
  const sequence = new Sequence(store);
  const error = assertThrows(() => sequence.reserve(1000, 32), MemoryLimit, "full");
  assertEquals([error.neededBytes, error.availableBytes], [32_000, 10_000]);
  assertEquals(store.pools.map((pool) => pool.reserved), [0, 0]);
});

Deno.test("growth that fails half way gives back what it took and leaves the sequence usable", () => {
  const store = new Slots(10);
  const sequence = new Sequence(store);
  store.write(sequence, count(0, 40));
  const free = store.pools.map((pool) => pool.free);
  assertThrows(() => sequence.prepare(400), MemoryLimit);
  assertEquals(store.pools.map((pool) => pool.free), free);
  store.write(sequence, count(40, 100));
  checkReads(store, sequence, count(0, 140));
});

Deno.test("random forks, appends, steps back and disposals never mix tokens nor lose pages", () => {
  const store = new Slots(256);
  let state = 12345;
  const random = (n: number) => {
    state = Math.imul(state, 1103515245) + 12345 | 0;
    return (state >>> 8) % n;
  };
  let live: { sequence: Sequence; tokens: number[] }[] = [{ sequence: new Sequence(store), tokens: [] }];
  let next = 0;
  for (let step = 0; step < 3000; step++) {
    const chosen = live[random(live.length)];
    const action = random(10);
    if (action < 6) {
      const added = count(next, 1 + random(40));
      next += added.length;
      if (chosen.tokens.length < 600) {
        store.write(chosen.sequence, added);
        chosen.tokens.push(...added);
      }
    } else if (action === 6 && live.length < 6) {
      live.push({ sequence: chosen.sequence.fork(), tokens: [...chosen.tokens] });
    } else if (action === 7 && chosen.tokens.length > 0) {
      const length = Math.max(0, chosen.tokens.length - random(40));
      if (chosen.sequence.canTruncate(length)) {
        chosen.sequence.truncate(length);
        chosen.tokens.length = length;
      }
    } else if (action === 8 && live.length > 1) {
      chosen.sequence.dispose();
      live = live.filter((other) => other !== chosen);
    }
    if (step % 20 === 0) { for (const { sequence, tokens } of live) checkReads(store, sequence, tokens); }
  }
  for (const { sequence } of live) sequence.dispose();
  assertEquals(store.pools.map((pool) => pool.free), [256, 256]);
});

Deno.test("a sequence that stopped early gives its promise back and keeps its tokens", () => {
  const store = new Slots(12);
  const session = new Sequence(store), other = new Sequence(store);
  session.reserve(300, 16);
  store.write(session, count(0, 40));
  assertThrows(() => other.reserve(200, 16), MemoryLimit);
  session.unreserve();
  other.reserve(200, 16);
  checkReads(store, session, count(0, 40));
});
