import { assert, assertEquals, assertThrows } from "@std/assert";
import { PagePool } from "../../src/cache/pages.ts";
import { PrefixCache } from "../../src/cache/prefix.ts";
import { pagesAtOnce, type PageStore, Sequence } from "../../src/cache/sequence.ts";
import { MemoryLimit } from "../../src/errors.ts";
import type { PageGroup } from "../../src/schedule/groups.ts";

const WINDOW = 64;
const GROUPS: PageGroup[] = [
  { name: "sliding", headDim: 8, kvHeads: 1, window: WINDOW, layers: [0, 1] },
  { name: "full", headDim: 8, kvHeads: 1, window: null, layers: [2] },
];

/** A store whose pages hold one number per token slot, so that tests can see what a sequence would read. */
class Slots implements PageStore {
  readonly groups = GROUPS;
  readonly pools: PagePool[];
  readonly slots: Float64Array[];
  readonly prefixes = new PrefixCache(8);
  constructor(pages: number) {
    this.pools = GROUPS.map((group) => new PagePool(group.name, pages, 1000));
    this.slots = GROUPS.map(() => new Float64Array(pages * 32).fill(NaN));
  }
  copyPage(group: number, from: number, to: number): void {
    this.slots[group].copyWithin(to * 32, from * 32, from * 32 + 32);
  }
  evict(): boolean {
    return this.prefixes.evict();
  }
  /** Appends tokens as a forward does. */
  write(sequence: Sequence, tokens: number[]): void {
    sequence.prepare(tokens.length);
    GROUPS.forEach((_, g) =>
      tokens.forEach((token, i) => {
        const { page, slot } = this.#place(sequence, g, sequence.length + i);
        assertEquals(this.pools[g].owners(page), 1, "a shared page is written");
        this.slots[g][page * 32 + slot] = token;
      })
    );
    sequence.commit(tokens.length);
  }
  /** What the token after the last would read in a group. */
  read(sequence: Sequence, g: number): number[] {
    const { window } = GROUPS[g];
    const from = window === null ? 0 : Math.max(0, sequence.length + 1 - window);
    return Array.from({ length: sequence.length - from }, (_, i) => {
      const { page, slot } = this.#place(sequence, g, from + i);
      return this.slots[g][page * 32 + slot];
    });
  }
  #place(sequence: Sequence, g: number, position: number): { page: number; slot: number } {
    const { first, pages } = sequence.tables[g];
    const page = pages[Math.floor(position / 32) - first];
    assert(page !== undefined, `position ${position} has no page`);
    return { page, slot: position % 32 };
  }
}

/** `count` tokens from `from` on. */
function count(from: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => from + i);
}

function checkReads(store: Slots, sequence: Sequence, tokens: number[]): void {
  assertEquals(store.read(sequence, 1), tokens);
  assertEquals(store.read(sequence, 0), tokens.slice(Math.max(0, tokens.length + 1 - WINDOW)));
}

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

Deno.test("kept prefixes give way when a running sequence needs their pages", () => {
  const store = new Slots(12);
  const first = new Sequence(store);
  store.write(first, count(0, 200));
  store.prefixes.keep(count(0, 200), first);
  first.dispose();
  const second = new Sequence(store);
  store.write(second, count(1000, 350));
  checkReads(store, second, count(1000, 350));
  assertEquals(store.prefixes.size, 0);
});

Deno.test("the prefix cache finds the longest kept prefix that leaves a token to compute", () => {
  const store = new Slots(64);
  const sequence = new Sequence(store);
  const ids = count(0, 300);
  store.write(sequence, ids.slice(0, 100));
  store.prefixes.keep(ids, sequence);
  store.write(sequence, ids.slice(100));
  store.prefixes.keep(ids, sequence);

  const longer = store.prefixes.find([...ids, 7])!;
  checkReads(store, longer, ids);
  const same = store.prefixes.find(ids)!;
  checkReads(store, same, ids.slice(0, 299));
  const early = store.prefixes.find([...ids.slice(0, 150), 7])!; // the sliding pages of token 150 are gone
  checkReads(store, early, ids.slice(0, 100));
  assertEquals(store.prefixes.find([5, 6, 7]), undefined);
  assertEquals(store.prefixes.find([0]), undefined);
  for (const each of [longer, same, early, sequence]) each.dispose();
  store.prefixes.clear();
  assertEquals(store.pools.map((pool) => pool.free), [64, 64]);
});

Deno.test("the prefix cache drops the least recently used snapshot beyond its limit", () => {
  const store = new Slots(64);
  const cache = new PrefixCache(2);
  const keep = (start: number) => {
    const sequence = new Sequence(store);
    store.write(sequence, count(start, 40));
    cache.keep(count(start, 40), sequence);
    sequence.dispose();
  };
  keep(0);
  keep(100);
  cache.find(count(0, 60))!.dispose(); // used again
  keep(200);
  assertEquals(cache.find(count(100, 60)), undefined);
  const kept = cache.find(count(0, 60))!;
  assertEquals(kept.length, 40);
  kept.dispose();
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

Deno.test("a reserved sequence never runs dry, however caches, forks and other sequences share its pages", () => {
  // Small pools, several growing timelines over a few common starts, and a cache that keeps snapshots of them.
  let state = 1;
  const random = (below: number) => {
    state = Math.imul(state, 1664525) + 1013904223 >>> 0;
    return Math.floor(state / 2 ** 32 * below);
  };
  let shared = 0, refused = 0;
  for (let round = 0; round < 18; round++) {
    const store = new Slots(8 + round % 9);
    const running = new Set<{ sequence: Sequence; ids: number[]; wanted: number }>();
    for (let step = 0; step < 400; step++) {
      if (running.size < 4 && random(8) === 0) {
        const ids = count(1000 * random(2), 1 + random(150));
        const sequence = store.prefixes.find(ids) ?? new Sequence(store);
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
        if (before < ids.length) store.write(sequence, ids.slice(before, before + 16));
        else store.write(sequence, [ids[ids.push(step * 10 + random(3)) - 1]]);
        checkReads(store, sequence, ids.slice(0, sequence.length));
        if (sequence.length === ids.length && random(3) === 0) store.prefixes.keep(ids, sequence);
        if (sequence.length < wanted && random(200) > 0) continue;
        running.delete(timeline);
        sequence.dispose();
      }
    }
    for (const { sequence } of running) sequence.dispose();
    assertEquals(store.pools.map((pool) => pool.reserved), [0, 0]);
    store.prefixes.clear();
    assertEquals(store.pools.map((pool) => pool.free), store.pools.map((pool) => pool.capacity));
  }
  assert(shared > 30 && refused > 30, `${shared} shared, ${refused} refused`);
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
