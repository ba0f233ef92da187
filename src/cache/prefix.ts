/**
 * Prefixes kept for reuse: a tree of blocks of 32 tokens with the pages that hold their keys and values, so that a prompt resumes
 * where an earlier one with the same beginning has been. Pages of each group are evicted on their own, the least recently
 * used first, when a sequence needs them; the pools are the cap.
 */
import { PAGE_TOKENS } from "../schedule/groups.ts";
import { firstVisiblePage, type PageStore, Sequence } from "./sequence.ts";

/** What a cached position depends on: a token id, or for media a text that names the content. */
export type TokenKey = number | string;

/** Why a prompt did not resume later than it did. */
export type ResumeEnd =
  /** all but the last token, which must be computed */
  | "prompt"
  /** nobody has computed what follows */
  | "unseen"
  /** pages of what follows were given up */
  | "evicted";

/** Where a prompt resumes. */
export interface Resumed {
  /** Tokens whose keys and values are there; the caller owns it. */
  sequence: Sequence;
  /** Why there are no more. */
  end: ResumeEnd;
}

interface Block {
  parent: Block | null;
  /** its name among the parent's children */ name: string;
  /** up to 32; fewer in the last block of a sequence, which has no children */ keys: TokenKey[];
  /** page of each group */ pages: (number | undefined)[];
  children: Map<string, Block>;
}

/** See the head of this file. */
export class PrefixTree {
  readonly #store: PageStore;
  readonly #limit: number;
  readonly #root: Block;
  /** blocks that have a page of each group, the least recently used first */
  readonly #used: Map<Block, number>[];

  /** `limit`: pages of each group that are kept at most; 0 keeps none. */
  constructor(store: PageStore, limit: number = Infinity) {
    this.#store = store;
    this.#limit = limit;
    this.#root = { parent: null, name: "", keys: [], pages: [], children: new Map() };
    this.#used = store.groups.map(() => new Map());
    store.pools.forEach((pool, g) => pool.evict = () => this.#evict(g));
  }

  /** Pages kept of each group. */
  get pages(): number[] {
    return this.#used.map((used) => used.size);
  }

  /** Blocks in the tree. */
  get blocks(): number {
    const count = (block: Block): number =>
      [...block.children.values()].reduce((sum, child) => sum + 1 + count(child), 0);
    return count(this.#root);
  }

  /**
   * A sequence with the longest kept prefix of `keys` that leaves a token to compute: the largest p with full pages for
   * [0, p) and sliding pages for what position p sees of it. `cut` gives the largest length up to another at which a
   * timeline may be cut, where not all are.
   */
  resume(keys: readonly TokenKey[], cut: (length: number) => number = (length) => length): Resumed {
    const { path, matched } = this.#match(keys);
    const most = Math.min(matched, keys.length - 1);
    const length = this.#resumable(path, most, cut);
    const sequence = new Sequence(this.#store);
    const end = length < cut(most) ? "evicted" : most === keys.length - 1 ? "prompt" : "unseen";
    if (length > 0 && !this.#share(sequence, path, length)) return { sequence, end: "evicted" };
    return { sequence, end };
  }

  /** Keeps the complete pages that `sequence`, which holds the first of `keys`, has; and with `tail` the last one too. */
  keep(keys: readonly TokenKey[], sequence: Sequence, tail: boolean = false): void {
    if (this.#limit === 0) return;
    const { length } = sequence;
    let block = this.#root;
    const whole = Math.floor(length / PAGE_TOKENS);
    for (let index = 0; index < whole; index++) {
      block = this.#keepBlock(
        block,
        keys.slice(index * PAGE_TOKENS, (index + 1) * PAGE_TOKENS),
        index,
        sequence,
      );
    }
    if (tail && length % PAGE_TOKENS > 0) {
      block = this.#keepTail(block, keys.slice(whole * PAGE_TOKENS, length), whole, sequence);
    }
    this.#prune(block);
    this.#used.forEach((used, g) => {
      while (used.size > this.#limit) {
        const [oldest] = used.keys();
        if (!this.#evict(g)) this.#drop(oldest, g);
      }
    });
  }

  /** Lets go of a page whose holder wants to write to it. */
  forget(group: number, page: number): void {
    for (const [block, kept] of this.#used[group]) if (kept === page) return this.#drop(block, group);
  }

  /** Lets all pages go. */
  clear(): void {
    this.#used.forEach((used, g) => {
      for (const block of [...used.keys()]) this.#drop(block, g);
    });
  }

  /** The blocks that begin like `keys`; the last one may do so in part. */
  #match(keys: readonly TokenKey[]): { path: Block[]; matched: number } {
    const path: Block[] = [];
    let block = this.#root;
    for (let at = 0;; at += PAGE_TOKENS) {
      const rest = keys.slice(at, at + PAGE_TOKENS);
      const child = rest.length === PAGE_TOKENS ? block.children.get(nameOf(rest)) : undefined;
      if (child !== undefined) {
        path.push(block = child);
        continue;
      }
      let best: Block | undefined, most = 0;
      for (const other of block.children.values()) {
        const shared = sharedLength(other.keys, rest);
        if (shared > most) [best, most] = [other, shared];
      }
      if (best !== undefined) path.push(best);
      return { path, matched: at + most };
    }
  }

  /** The largest p up to `limit` whose pages are all there. */
  #resumable(path: readonly Block[], limit: number, cut: (length: number) => number): number {
    const { groups } = this.#store;
    const blocks = Math.ceil(limit / PAGE_TOKENS);
    let best = 0;
    const start = groups.map(() => 0); // of the run of pages that ends at the present block
    for (let index = 0; index < blocks; index++) {
      const end = cut(Math.min(limit, (index + 1) * PAGE_TOKENS));
      let usable = true;
      for (const [g, { window }] of groups.entries()) {
        if (path[index].pages[g] === undefined) start[g] = index + 1;
        const first = window === null ? 0 : firstVisiblePage(end, window);
        if (start[g] > first) usable = false;
      }
      if (usable) best = Math.max(best, end);
    }
    return best;
  }

  /** Makes `sequence` hold the pages of [0, length); false, and nothing, where running sequences leave no room for that. */
  #share(sequence: Sequence, path: readonly Block[], length: number): boolean {
    const { groups, pools } = this.#store;
    const last = Math.ceil(length / PAGE_TOKENS);
    const firsts = groups.map(({ window }) => window === null ? 0 : firstVisiblePage(length, window));
    for (const [g, pool] of pools.entries()) {
      let taken = 0;
      for (let index = firsts[g]; index < last; index++) {
        if (pool.owners(path[index].pages[g]!) === 0) taken++;
      }
      if (taken > pool.available - pool.reserved) return false;
    }
    sequence.share(
      length,
      groups.map((_, g) => ({
        first: firsts[g],
        pages: path.slice(firsts[g], last).map((block) => block.pages[g]!),
      })),
    );
    groups.forEach(({ window }, g) => {
      const used = path.slice(firsts[g], last);
      // The last one touched goes last: of full pages the first blocks, of sliding ones the end of the window.
      for (const block of window === null ? used.reverse() : used) this.#touch(block, g);
    });
    return true;
  }

  #keepBlock(parent: Block, keys: TokenKey[], index: number, sequence: Sequence): Block {
    const name = nameOf(keys);
    let block = parent.children.get(name);
    if (block === undefined) {
      block = { parent, name, keys, pages: this.#store.groups.map(() => undefined), children: new Map() };
      parent.children.set(name, block);
    }
    sequence.tables.forEach(({ first, pages }, g) => {
      if (block.pages[g] !== undefined || index < first || index - first >= pages.length) return;
      const page = pages[index - first];
      if (this.#store.pools[g].isKept(page)) return; // under other tokens, as the beginning of this block
      this.#store.pools[g].keep(page);
      block.pages[g] = page;
      this.#used[g].set(block, page);
    });
    return block;
  }

  #keepTail(parent: Block, keys: TokenKey[], index: number, sequence: Sequence): Block {
    for (const other of [...parent.children.values()]) {
      const shared = sharedLength(other.keys, keys);
      const complete = other.pages.every((page) => page !== undefined);
      if (shared === keys.length && complete) return other; // it holds more than this
      if (shared === other.keys.length && other.children.size === 0 && other.keys.length < PAGE_TOKENS) {
        other.pages.forEach((page, g) => page !== undefined && this.#drop(other, g));
      }
    }
    return this.#keepBlock(parent, keys, index, sequence);
  }

  #touch(block: Block, g: number): void {
    const page = block.pages[g];
    if (page === undefined) return;
    this.#used[g].delete(block);
    this.#used[g].set(block, page);
  }

  /** Frees the least recently used page of a group that no sequence holds. */
  #evict(g: number): boolean {
    const pool = this.#store.pools[g];
    const isFull = this.#store.groups[g].window === null;
    for (const [block, page] of this.#used[g]) {
      if (pool.owners(page) > 0) continue;
      // Full pages are of no use without those before them, so the end of a prefix goes first.
      this.#drop(isFull ? this.#lastUnowned(block, g) : block, g);
      return true;
    }
    return false;
  }

  #lastUnowned(block: Block, g: number): Block {
    const pool = this.#store.pools[g];
    for (;;) {
      const next = [...block.children.values()].find(({ pages }) =>
        pages[g] !== undefined && pool.owners(pages[g]) === 0
      );
      if (next === undefined) return block;
      block = next;
    }
  }

  #drop(block: Block, g: number): void {
    const page = block.pages[g];
    if (page === undefined) return;
    block.pages[g] = undefined;
    this.#used[g].delete(block);
    this.#store.pools[g].unkeep(page);
    this.#prune(block);
  }

  /** Removes blocks that hold nothing, from `block` upwards. */
  #prune(block: Block): void {
    for (let at: Block | null = block; at !== null && at.parent !== null; at = at.parent) {
      if (at.children.size > 0 || at.pages.some((page) => page !== undefined)) return;
      at.parent.children.delete(at.name);
    }
  }
}

function nameOf(keys: readonly TokenKey[]): string {
  return JSON.stringify(keys);
}

function sharedLength(a: readonly TokenKey[], b: readonly TokenKey[]): number {
  let shared = 0;
  while (shared < a.length && shared < b.length && a[shared] === b[shared]) shared++;
  return shared;
}
