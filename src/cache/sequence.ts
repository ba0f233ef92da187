/** The KV pages of one timeline of tokens: one table per page group. */
import type { PageTable } from "../engine/input.ts";
import { PAGE_TOKENS, type PageGroup } from "../schedule/groups.ts";
import type { PagePool } from "./pages.ts";

/** The page groups of a model with their pools, and the one thing that must be done to the pages' bytes. */
export interface PageStore {
  groups: readonly PageGroup[];
  pools: readonly PagePool[];
  /** Copies a whole page within a group's buffer. */
  copyPage(group: number, from: number, to: number): void;
  /** Tries to free pages that only a cache holds; returns whether it freed any. */
  evict(): boolean;
}

/** Tokens that a sliding group keeps beyond its window, so that a sequence can always go back a little. */
const SLACK_TOKENS = PAGE_TOKENS;

interface Table extends PageTable {
  first: number;
  pages: number[];
}

/**
 * Positions [0, length) have keys and values in the pages of this sequence; a sliding group keeps only the pages that
 * the next token can see. Pages may be shared with other sequences; a shared page is copied before it is written.
 */
export class Sequence {
  readonly #store: PageStore;
  readonly #tables: Table[];
  /** promised pages by group */
  readonly #reserved: number[];
  /** pages, held and promised, that the present reservation covers by group */
  readonly #quota: number[];
  #length = 0;
  #disposed = false;

  constructor(store: PageStore) {
    this.#store = store;
    this.#tables = store.groups.map(() => ({ first: 0, pages: [] }));
    this.#reserved = store.groups.map(() => 0);
    this.#quota = store.groups.map(() => 0);
  }

  /** Tokens whose keys and values are stored. */
  get length(): number {
    return this.#length;
  }

  /** The page table of each group, for the input block. */
  get tables(): readonly PageTable[] {
    return this.#tables;
  }

  /**
   * Promises this sequence the pages that it needs to grow to `length` tokens in chunks of at most `rows`. Throws
   * `MemoryLimit` and promises nothing if they are not there.
   */
  reserve(length: number, rows: number): void {
    this.#unreserve();
    const { groups, pools } = this.#store;
    const needed = groups.map((group, g) => {
      const held = this.#tables[g].pages.length;
      // A shared tail page is copied once.
      const tail = this.#tables[g].pages.at(-1);
      const copies = tail !== undefined && this.#length % PAGE_TOKENS !== 0 && pools[g].owners(tail) > 1
        ? 1
        : 0;
      return Math.max(0, pagesAtOnce(group, length, rows) - held) + copies;
    });
    for (;;) {
      let g = 0;
      try {
        for (; g < pools.length; g++) pools[g].reserve(needed[g]);
      } catch (error) {
        for (let done = 0; done < g; done++) pools[done].unreserve(needed[done]);
        if (this.#store.evict()) continue;
        throw error;
      }
      break;
    }
    needed.forEach((count, g) => {
      this.#reserved[g] = count;
      this.#quota[g] = this.#tables[g].pages.length + count;
    });
  }

  /** Makes room for `count` tokens after the present ones. Throws `MemoryLimit`; the sequence stays usable. */
  prepare(count: number): void {
    try {
      this.#store.groups.forEach((_, g) => this.#prepareGroup(g, count));
    } catch (error) {
      this.truncate(this.#length); // gives back what was allocated
      throw error;
    }
  }

  /** Counts `count` prepared and written tokens in, and lets go of pages that no later token can see. */
  commit(count: number): void {
    this.#length += count;
    this.#store.groups.forEach(({ window }, g) => {
      if (window === null) return;
      const table = this.#tables[g];
      const visible = firstVisiblePage(this.#length - SLACK_TOKENS, window);
      while (table.first < visible && table.pages.length > 0) {
        this.#store.pools[g].release(table.pages.shift()!);
        table.first++;
        this.#renew(g);
      }
    });
  }

  /** Whether `truncate(length)` is possible: the sliding pages that token `length` sees are still there. */
  canTruncate(length: number): boolean {
    return length <= this.#length && this.#store.groups.every(({ window }, g) => {
      return window === null || this.#tables[g].first <= firstVisiblePage(length, window);
    });
  }

  /** Forgets all tokens from `length` on. Throws `RangeError` unless `canTruncate(length)`. */
  truncate(length: number): void {
    if (!this.canTruncate(length)) {
      throw new RangeError(`Cannot go back from ${this.#length} to ${length} tokens.`);
    }
    this.#length = length;
    const end = Math.ceil(length / PAGE_TOKENS);
    this.#tables.forEach((table, g) => {
      while (table.first + table.pages.length > end && table.pages.length > 0) {
        this.#store.pools[g].release(table.pages.pop()!);
      }
    });
  }

  /** A second sequence with the same tokens; it shares the pages until one of the two writes to them. */
  fork(): Sequence {
    const copy = new Sequence(this.#store);
    copy.#length = this.#length;
    this.#tables.forEach((table, g) => {
      copy.#tables[g].first = table.first;
      copy.#tables[g].pages = [...table.pages];
      for (const page of table.pages) this.#store.pools[g].retain(page);
    });
    return copy;
  }

  /** Takes fresh pages for `length` tokens whose bytes the caller will write. For an empty sequence. */
  adopt(length: number, first: readonly number[]): void {
    if (this.#length !== 0) throw new RangeError("Only an empty sequence can adopt pages.");
    const end = Math.ceil(length / PAGE_TOKENS);
    this.#tables.forEach((table, g) => {
      table.first = first[g];
      while (table.first + table.pages.length < end) table.pages.push(this.#allocate(g));
    });
    this.#length = length;
  }

  /** Gives all pages back; harmless when repeated. */
  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#unreserve();
    this.#tables.forEach((table, g) => {
      for (const page of table.pages) this.#store.pools[g].release(page);
      table.pages = [];
    });
    this.#length = 0;
  }

  #prepareGroup(g: number, count: number): void {
    const pool = this.#store.pools[g];
    const table = this.#tables[g];
    const tail = Math.floor(this.#length / PAGE_TOKENS) - table.first; // the page that the next token goes to
    if (tail < table.pages.length && pool.owners(table.pages[tail]) > 1) {
      const copy = this.#allocate(g);
      this.#store.copyPage(g, table.pages[tail], copy);
      pool.release(table.pages[tail]);
      table.pages[tail] = copy;
    }
    const end = Math.ceil((this.#length + count) / PAGE_TOKENS);
    while (table.first + table.pages.length < end) table.pages.push(this.#allocate(g));
  }

  #allocate(g: number): number {
    const pool = this.#store.pools[g];
    const promised = this.#reserved[g] > 0;
    while (!promised && pool.free <= pool.reserved && this.#store.evict()); // caches give way
    const page = pool.allocate(promised);
    if (promised) this.#reserved[g]--;
    return page;
  }

  /** Promises the page that was just let go to this sequence again, as far as its reservation reaches. */
  #renew(g: number): void {
    const pool = this.#store.pools[g];
    if (this.#tables[g].pages.length + this.#reserved[g] >= this.#quota[g] || pool.free <= pool.reserved) {
      return;
    }
    pool.reserve(1);
    this.#reserved[g]++;
  }

  #unreserve(): void {
    this.#reserved.forEach((count, g) => this.#store.pools[g].unreserve(count));
    this.#reserved.fill(0);
    this.#quota.fill(0);
  }
}

/** Pages of a group that one sequence holds at most while it grows to `length` tokens in chunks of at most `rows`. */
export function pagesAtOnce({ window }: PageGroup, length: number, rows: number): number {
  const all = Math.ceil(length / PAGE_TOKENS);
  if (window === null) return all;
  // The window before the chunk and the chunk itself, each starting anywhere in a page.
  return Math.min(all, Math.ceil((window + SLACK_TOKENS + rows) / PAGE_TOKENS) + 1);
}

/** The first page that a token at position `length` sees through `window`. */
function firstVisiblePage(length: number, window: number): number {
  return Math.floor(Math.max(0, length - window + 1) / PAGE_TOKENS);
}
