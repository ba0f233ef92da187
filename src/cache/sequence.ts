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
  /** Makes the prefix cache let go of a page. */
  forget(group: number, page: number): void;
}

/** Tokens that a sliding group keeps beyond its window, so that a sequence can always go back a little. */
const SLACK_TOKENS = PAGE_TOKENS;

interface Table extends PageTable {
  first: number;
  pages: number[];
}

/** What a sequence has to give back. */
interface Held {
  store: PageStore;
  tables: readonly Table[];
  /** promised pages by group */ reserved: readonly number[];
}

/** Sequences that nobody can reach any more and nobody disposed of, as that of an iterator which was dropped half-way. */
const forgotten = new FinalizationRegistry<Held>(giveBackAll);

function giveBackAll({ store, tables, reserved }: Held): void {
  store.pools.forEach((pool, g) => {
    pool.unreserve(reserved[g]);
    for (const page of tables[g].pages) pool.release(page);
  });
}

/**
 * Positions [0, length) have keys and values in the pages of this sequence; a sliding group keeps only the pages that
 * the next token can see. `dispose` gives them back; the garbage collector does so for a sequence that was dropped. Pages may be
 * shared with other sequences; a shared page is copied before it is written.
 *
 * A reservation covers every page that its sequence will write, none of them shared with another reservation. So a free
 * page, or one that only a cache holds, is there whenever a covered sequence needs one.
 */
export class Sequence {
  readonly #store: PageStore;
  readonly #tables: Table[];
  /** promised pages by group */
  readonly #reserved: number[];
  /** pages that the present reservation lets this sequence hold at once by group; 0 without one */
  readonly #quota: number[];
  #length = 0;
  #disposed = false;

  constructor(store: PageStore) {
    this.#store = store;
    this.#tables = store.groups.map(() => ({ first: 0, pages: [] }));
    this.#reserved = store.groups.map(() => 0);
    this.#quota = store.groups.map(() => 0);
    forgotten.register(this, { store, tables: this.#tables, reserved: this.#reserved }, this);
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
    this.#giveBack(false);
    const { groups, pools } = this.#store;
    const most = groups.map((group) => pagesAtOnce(group, Math.max(length, this.#length), rows));
    const needed = groups.map((group, g) => Math.max(0, most[g] - this.#ownPages(group, g)));
    let g = 0;
    try {
      for (; g < pools.length; g++) pools[g].reserve(needed[g]);
    } catch (error) {
      for (let done = 0; done < g; done++) pools[done].unreserve(needed[done]);
      throw error;
    }
    needed.forEach((count, g) => {
      this.#reserved[g] = count;
      this.#quota[g] = most[g];
    });
  }

  /** Gives back what `reserve` promised and was not used; the tokens stay. */
  unreserve(): void {
    this.#giveBack(true);
  }

  /**
   * Gives promises back; while the sequence holds on to its pages, all but those in place of pages that others hold too: when
   * the others let go of these, nothing becomes free for them.
   */
  #giveBack(holding: boolean): void {
    this.#store.groups.forEach((group, g) => {
      const shared = holding ? this.#tables[g].pages.length - this.#ownPages(group, g) : 0;
      const kept = Math.min(shared, this.#reserved[g]);
      this.#store.pools[g].unreserve(this.#reserved[g] - kept);
      this.#reserved[g] = kept;
      this.#quota[g] = 0;
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

  /**
   * Counts `count` prepared and written tokens in, calls `written`, and lets go of pages that no later token can see.
   */
  commit(count: number, written?: () => void): void {
    this.#length += count;
    written?.();
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

  /** Whether the tables stay as they are when one prepared token is counted in and another is prepared. */
  get keepsTables(): boolean {
    const next = this.#length + 1;
    return next % PAGE_TOKENS !== 0 && this.#store.groups.every(({ window }, g) => {
      return window === null || firstVisiblePage(next - SLACK_TOKENS, window) <= this.#tables[g].first;
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
        this.#renew(g);
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

  /** Holds the pages of the first `length` tokens of others. For an empty sequence. */
  share(length: number, tables: readonly PageTable[]): void {
    if (this.#length !== 0) throw new RangeError("Only an empty sequence can share pages.");
    tables.forEach(({ first, pages }, g) => {
      this.#tables[g].first = first;
      this.#tables[g].pages = Array.from(pages);
      for (const page of this.#tables[g].pages) this.#store.pools[g].retain(page);
    });
    this.#length = length;
  }

  /** Takes fresh pages for `length` tokens whose bytes the caller will write. For an empty sequence. */
  adopt(length: number, first: readonly number[]): void {
    if (this.#length !== 0) throw new RangeError("Only an empty sequence can adopt pages.");
    const end = Math.ceil(length / PAGE_TOKENS);
    this.#tables.forEach((table, g) => {
      table.first = first[g];
      while (table.first + table.pages.length < end) {
        table.pages.push(this.#allocate(g, table.pages.length < this.#quota[g]));
      }
    });
    this.#length = length;
  }

  /** Gives all pages back; harmless when repeated. */
  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    forgotten.unregister(this);
    giveBackAll({ store: this.#store, tables: this.#tables, reserved: this.#reserved });
    this.#tables.forEach((table) => table.pages = []);
    this.#reserved.fill(0);
    this.#quota.fill(0);
    this.#length = 0;
  }

  #prepareGroup(g: number, count: number): void {
    const pool = this.#store.pools[g];
    const table = this.#tables[g];
    const tail = Math.floor(this.#length / PAGE_TOKENS) - table.first; // the page that the next token goes to
    const covered = this.#quota[g] > 0;
    if (tail < table.pages.length) {
      const page = table.pages[tail];
      if (pool.owners(page) > 1) {
        this.#replace(g, tail, this.#allocate(g, covered));
        this.#renew(g);
      } else if (pool.isKept(page)) {
        if (pool.hasSpare) this.#replace(g, tail, pool.allocate(false));
        else this.#store.forget(g, page);
      }
    }
    const end = Math.ceil((this.#length + count) / PAGE_TOKENS);
    while (table.first + table.pages.length < end) {
      table.pages.push(this.#allocate(g, table.pages.length < this.#quota[g]));
    }
  }

  /** Puts a copy in the place of a page. */
  #replace(g: number, index: number, copy: number): void {
    const { pages } = this.#tables[g];
    this.#store.copyPage(g, pages[index], copy);
    this.#store.pools[g].release(pages[index]);
    pages[index] = copy;
  }

  /** A free page. `covered`: by the reservation, even if its promises are used up. */
  #allocate(g: number, covered: boolean): number {
    const promised = covered && this.#reserved[g] > 0;
    const page = this.#store.pools[g].allocate(covered, promised);
    if (promised) this.#reserved[g]--;
    return page;
  }

  /** Promises a page in place of one that was just let go, as far as the reservation reaches. */
  #renew(g: number): void {
    if (this.#tables[g].pages.length + this.#reserved[g] >= this.#quota[g]) return;
    this.#store.pools[g].renew();
    this.#reserved[g]++;
  }

  /**
   * Held pages that count as this sequence's in a reservation: not those that it may have to replace while others still
   * hold them, which are shared sliding pages and a shared page that is not full.
   */
  #ownPages({ window }: PageGroup, g: number): number {
    const { pages } = this.#tables[g];
    const pool = this.#store.pools[g];
    const shared = (page: number | undefined) => page !== undefined && pool.owners(page) > 1;
    if (window !== null) return pages.filter((page) => !shared(page)).length;
    return pages.length - (this.#length % PAGE_TOKENS !== 0 && shared(pages.at(-1)) ? 1 : 0);
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
export function firstVisiblePage(length: number, window: number): number {
  return Math.floor(Math.max(0, length - window + 1) / PAGE_TOKENS);
}
