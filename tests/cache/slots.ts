/** A store for tests of sequences and prefixes. */
import { assert, assertEquals } from "@std/assert";
import { PagePool } from "../../src/cache/pages.ts";
import { PrefixTree } from "../../src/cache/prefix.ts";
import type { PageStore, Sequence } from "../../src/cache/sequence.ts";
import type { PageGroup } from "../../src/schedule/groups.ts";

/** Tokens that the sliding group sees. */
export const WINDOW = 64;
/** A sliding and a full group. */
export const GROUPS: PageGroup[] = [
  { name: "sliding", headDim: 8, kvHeads: 1, window: WINDOW, layers: [0, 1] },
  { name: "full", headDim: 8, kvHeads: 1, window: null, layers: [2] },
];

/** A store whose pages hold one number per token slot, so that tests can see what a sequence would read. */
export class Slots implements PageStore {
  readonly groups = GROUPS;
  readonly pools: PagePool[];
  readonly slots: Float64Array[];
  readonly prefixes: PrefixTree;
  /** `pages`: of each group, or of all. */
  constructor(pages: number | number[], kept: number = Infinity) {
    const sizes = GROUPS.map((_, g) => typeof pages === "number" ? pages : pages[g]);
    this.pools = GROUPS.map((group, g) => new PagePool(group.name, sizes[g], 1000));
    this.slots = GROUPS.map((_, g) => new Float64Array(sizes[g] * 32).fill(NaN));
    this.prefixes = new PrefixTree(this, kept);
  }
  copyPage(group: number, from: number, to: number): void {
    this.slots[group].copyWithin(to * 32, from * 32, from * 32 + 32);
  }
  forget(group: number, page: number): void {
    this.prefixes.forget(group, page);
  }
  /** Appends tokens as a forward does; `ids`: of the whole timeline, to be kept. */
  write(sequence: Sequence, tokens: number[], ids?: readonly number[]): void {
    sequence.prepare(tokens.length);
    GROUPS.forEach((_, g) =>
      tokens.forEach((token, i) => {
        const { page, slot } = this.#place(sequence, g, sequence.length + i);
        assertEquals(this.pools[g].owners(page), 1, "a shared page is written");
        assert(!this.pools[g].isKept(page), "a kept page is written");
        this.slots[g][page * 32 + slot] = token;
      })
    );
    sequence.commit(tokens.length, () => ids && this.prefixes.keep(ids, sequence));
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
export function count(from: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => from + i);
}

/** Checks that a sequence reads `tokens`. */
export function checkReads(store: Slots, sequence: Sequence, tokens: number[]): void {
  assertEquals(store.read(sequence, 1), tokens);
  assertEquals(store.read(sequence, 0), tokens.slice(Math.max(0, tokens.length + 1 - WINDOW)));
}
