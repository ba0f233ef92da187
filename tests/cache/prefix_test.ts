import { assert, assertEquals, assertThrows } from "@std/assert";
import type { TokenKey } from "../../src/cache/prefix.ts";
import { pagesAtOnce, Sequence } from "../../src/cache/sequence.ts";
import { MemoryLimit } from "../../src/errors.ts";
import { checkReads, count, GROUPS, Slots, WINDOW } from "./slots.ts";

/** Writes `ids` in chunks as a prompt does, keeps them and disposes the sequence. */
function visit(store: Slots, ids: readonly number[], chunk: number = 48): void {
  const { sequence } = store.prefixes.resume(ids);
  while (sequence.length < ids.length) {
    store.write(sequence, ids.slice(sequence.length, sequence.length + chunk), ids);
  }
  store.prefixes.keep(ids, sequence, true);
  sequence.dispose();
}

/** Where a prompt resumes, and why not later; its tokens are checked. */
function resumed(store: Slots, ids: readonly number[]): [number, string] {
  const { sequence, end } = store.prefixes.resume(ids);
  checkReads(store, sequence, ids.slice(0, sequence.length));
  const { length } = sequence;
  sequence.dispose();
  return [length, end];
}

Deno.test("a prompt resumes where kept ones with the same beginning end, down to the token, and says why not later", () => {
  const store = new Slots(64);
  const ids = count(0, 300);
  assertEquals(resumed(store, ids), [0, "unseen"]);
  visit(store, ids);
  assertEquals(resumed(store, ids), [299, "prompt"]);
  assertEquals(resumed(store, [...ids, 7]), [300, "prompt"]);
  assertEquals(resumed(store, [...ids, 7, 8]), [300, "unseen"]);
  assertEquals(resumed(store, [...ids.slice(0, 270), 7, 8]), [270, "unseen"]);
  assertEquals(resumed(store, [...ids.slice(0, 33), 7, 8]), [33, "unseen"]);
  assertEquals(resumed(store, [5, 6, 7]), [0, "unseen"]);
  assertEquals(resumed(store, [0]), [0, "prompt"]);
  store.prefixes.clear();
  assertEquals(store.pools.map((pool) => pool.free), [64, 64]);
  assertEquals(store.prefixes.blocks, 0);
});

Deno.test("sliding pages that left the window stay kept, so that a prompt that parts early resumes there", () => {
  const store = new Slots(64);
  const ids = count(0, 1000);
  visit(store, ids);
  for (const parting of [999, 700, 512, 130, 65]) {
    assertEquals(resumed(store, [...ids.slice(0, parting), 5000, 5001]), [parting, "unseen"]);
  }
});

Deno.test("a prompt resumes at the largest p with all full pages before it and the sliding pages that p sees", () => {
  // Against the definition, over trees with random holes.
  let state = 7;
  const random = (below: number) => {
    state = Math.imul(state, 1664525) + 1013904223 >>> 0;
    return Math.floor(state / 2 ** 32 * below);
  };
  const ids = count(0, 400);
  let evicted = 0;
  for (let round = 0; round < 200; round++) {
    const store = new Slots(32);
    const { sequence } = store.prefixes.resume(ids);
    const places = GROUPS.map(() => new Map<number, number>());
    while (sequence.length < 400) {
      store.write(sequence, ids.slice(sequence.length, sequence.length + 16), ids);
      sequence.tables.forEach(({ first, pages }, g) => {
        for (let i = 0; i < pages.length; i++) places[g].set(first + i, pages[i]);
      });
    }
    store.prefixes.keep(ids, sequence, true);
    sequence.dispose();
    for (let hole = random(4); hole > 0; hole--) {
      const g = random(2), block = random(13);
      if (places[g].has(block)) store.prefixes.forget(g, places[g].get(block)!);
      places[g].delete(block);
    }
    let expected = 0;
    for (let p = 399; p > 0 && expected === 0; p--) {
      const has = (g: number, from: number) => {
        for (let token = from; token < p; token++) if (!places[g].has(token >> 5)) return false;
        return true;
      };
      if (has(0, Math.max(0, p - WINDOW + 1)) && has(1, 0)) expected = p;
    }
    if (expected < 399) evicted++;
    assertEquals(resumed(store, ids), [expected, expected === 399 ? "prompt" : "evicted"]);
  }
  assert(evicted > 50, `${evicted}`);
});

Deno.test("kept pages give way when a running sequence needs them, the least recently used first", () => {
  const store = new Slots(14);
  visit(store, count(0, 200));
  visit(store, count(1000, 100));
  assertEquals(resumed(store, count(0, 200))[0], 199); // used again
  const second = new Sequence(store);
  store.write(second, count(2000, 150));
  checkReads(store, second, count(2000, 150));
  assertEquals(resumed(store, count(0, 200))[0], 199);
  assert(resumed(store, count(1000, 100))[0] < 99);
  store.write(second, count(3000, 298));
  checkReads(store, second, [...count(2000, 150), ...count(3000, 298)]);
  assertEquals(store.prefixes.pages[1], 0);
});

Deno.test("of a prefix's full pages the last goes first, so that its beginning stays of use", () => {
  const store = new Slots(10);
  visit(store, count(0, 256));
  const other = new Sequence(store);
  store.write(other, count(1000, 100)); // takes two free pages and evicts two
  const [p, end] = resumed(store, count(0, 256));
  assert(p >= 160 && p <= 192, `${p}`);
  assertEquals(end, "evicted");
});

Deno.test("sliding and full pages are evicted independently", () => {
  const store = new Slots(40);
  visit(store, count(0, 320));
  for (const pool of store.pools) assertEquals(pool.available, 40);
  const before = store.prefixes.pages;
  assert(store.pools[0].evict());
  assertEquals(store.prefixes.pages, [before[0] - 1, before[1]]);
  assertEquals(resumed(store, count(0, 320))[0], 319, "the oldest sliding page is of no use at the end");
});

Deno.test("a limit bounds the pages that are kept, and 0 keeps none", () => {
  const store = new Slots(64, 5);
  visit(store, count(0, 300));
  assert(store.prefixes.pages.every((pages) => pages <= 5));
  const none = new Slots(64, 0);
  visit(none, count(0, 300));
  assertEquals(none.pools.map((pool) => pool.free), [64, 64]);
});

Deno.test("tokens that stand for other media are other tokens", () => {
  const store = new Slots(64);
  const keys = (
    image: string,
  ): TokenKey[] => [...count(0, 40), ...Array.from({ length: 30 }, () => image), ...count(50, 30)];
  const sequence = new Sequence(store);
  store.write(sequence, count(0, 100));
  store.prefixes.keep(keys("sha256:aa"), sequence, true);
  sequence.dispose();
  const found = (image: string) => {
    const { sequence } = store.prefixes.resume([...keys(image), 1]);
    const { length } = sequence;
    sequence.dispose();
    return length;
  };
  assertEquals([found("sha256:aa"), found("sha256:bb")], [100, 40]);
});

Deno.test("a thousand different prompts leave no blocks behind beyond the pages that are kept", () => {
  const store = new Slots(24);
  for (let i = 0; i < 1000; i++) visit(store, count(1000 * i, 20 + i * 37 % 200));
  const [sliding, full] = store.prefixes.pages;
  assert(sliding <= 24 && full <= 24);
  assert(store.prefixes.blocks <= sliding + full);
  store.prefixes.clear();
  assertEquals(store.pools.map((pool) => pool.free), [24, 24]);
});

Deno.test("a kept page is copied before its holder writes on, or let go where there is no room for a copy", () => {
  for (const pages of [64, 4]) {
    const store = new Slots(pages);
    const sequence = new Sequence(store);
    const ids = count(0, 100); // four pages, the last one in part
    store.write(sequence, ids, ids);
    store.prefixes.keep(ids, sequence, true);
    store.write(sequence, count(500, 20));
    checkReads(store, sequence, [...ids, ...count(500, 20)]);
    sequence.dispose();
    assertEquals(resumed(store, [...ids, 7])[0], pages === 64 ? 100 : 96);
  }
});

Deno.test("a reserved sequence never runs dry, however caches, forks and other sequences share its pages", () => {
  // Small pools, several growing timelines over a few common starts, and a cache that keeps their pages.
  let state = 1;
  const random = (below: number) => {
    state = Math.imul(state, 1664525) + 1013904223 >>> 0;
    return Math.floor(state / 2 ** 32 * below);
  };
  let shared = 0, refused = 0;
  for (let round = 0; round < 18; round++) {
    const store = new Slots(8 + round % 9);
    const running = new Set<{ sequence: Sequence; ids: number[]; wanted: number }>();
    const idle: Sequence[] = []; // as sessions between two replies
    for (let step = 0; step < 400; step++) {
      if (running.size < 4 && random(8) === 0) {
        const ids = count(1000 * random(2), 1 + random(150));
        const sequence = store.prefixes.resume(ids).sequence;
        if (sequence.length > 0) shared++;
        const wanted = ids.length + random(120);
        try {
          sequence.reserve(wanted, 16);
          running.add({ sequence, ids, wanted });
        } catch (error) {
          assert(error instanceof MemoryLimit);
          refused++;
          sequence.dispose();
        }
      }
      for (const timeline of [...running]) {
        const { sequence, ids, wanted } = timeline;
        const before = sequence.length;
        if (before < ids.length) store.write(sequence, ids.slice(before, before + 16), ids);
        else store.write(sequence, [ids[ids.push(step * 10 + random(3)) - 1]], ids);
        checkReads(store, sequence, ids.slice(0, sequence.length));
        if (sequence.length === ids.length && random(9) === 0) store.prefixes.keep(ids, sequence, true);
        if (sequence.length < wanted && random(200) > 0) continue;
        running.delete(timeline);
        store.prefixes.keep(ids, sequence, true);
        sequence.unreserve();
        if (random(2) === 0) idle.push(sequence);
        else sequence.dispose();
      }
      if (idle.length > random(4)) idle.shift()!.dispose();
    }
    for (const { sequence } of running) sequence.dispose();
    for (const sequence of idle) sequence.dispose();
    assertEquals(store.pools.map((pool) => pool.reserved), [0, 0]);
    store.prefixes.clear();
    assertEquals(store.pools.map((pool) => pool.free), store.pools.map((pool) => pool.capacity));
  }
  assert(shared > 30 && refused > 30, `${shared} shared, ${refused} refused`);
});

Deno.test("a sequence that rests keeps the promise in place of pages that a running one will let go of", () => {
  // Growing by up to 64 tokens at once, each sequence has 6 sliding pages at most.
  const most = pagesAtOnce(GROUPS[0], 400, 64);
  const store = new Slots([2 * most, 64]);
  const ids = count(0, 96);
  const a = new Sequence(store);
  a.reserve(400, 64);
  store.write(a, ids, ids);
  const { sequence: b } = store.prefixes.resume([...ids, 1]);
  assertEquals(b.length, 96);
  b.reserve(400, 64);
  b.unreserve(); // a session between two replies, which holds what it shares with a
  const c = new Sequence(store);
  assertThrows(() => c.reserve(400, 64), MemoryLimit); // with b's pages there is no room for a and c
  for (let at = 96; at < 400; at += 64) store.write(a, count(at, Math.min(64, 400 - at)));
  b.dispose();
  a.dispose();
  c.reserve(400, 64);
  for (let at = 0; at < 400; at += 64) store.write(c, count(at, Math.min(64, 400 - at)));
  for (const sequence of [a, c]) sequence.dispose();
  store.prefixes.clear();
  assertEquals(store.pools.map((pool) => [pool.free, pool.reserved]), [[2 * most, 0], [64, 0]]);
});
