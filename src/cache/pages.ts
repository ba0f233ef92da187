/**
 * Pools of KV pages: which pages of a group's buffer are free, how many sequences hold each of the others, and which the prefix
 * cache keeps.
 */
import { MemoryLimit } from "../errors.ts";

/**
 * The pages of one group. A page is free, held by sequences, kept by the prefix cache, or both of the latter. A page that
 * only the cache keeps is as good as free: it is evicted when somebody needs a page.
 */
export class PagePool {
  /** Pages in all. */
  readonly capacity: number;
  readonly #name: string;
  readonly #pageBytes: number;
  /** sequences that hold each page */
  readonly #owners: Uint32Array;
  /** 1: the prefix cache keeps it */
  readonly #kept: Uint8Array;
  /** free pages, the next one last */
  readonly #free: number[];
  #evictable = 0;
  #reserved = 0;

  /** Frees a page that only the cache keeps; set by the cache. Returns whether there was one. */
  evict: () => boolean = () => false;

  /** `name` and `pageBytes` are for messages. */
  constructor(name: string, capacity: number, pageBytes: number) {
    this.#name = name;
    this.capacity = capacity;
    this.#pageBytes = pageBytes;
    this.#owners = new Uint32Array(capacity);
    this.#kept = new Uint8Array(capacity);
    this.#free = Array.from({ length: capacity }, (_, i) => capacity - 1 - i);
  }

  /** Pages that nobody holds or keeps, reserved ones included. */
  get free(): number {
    return this.#free.length;
  }

  /** Pages that no sequence holds: free ones and those that only the cache keeps. */
  get available(): number {
    return this.#free.length + this.#evictable;
  }

  /** Promised pages; more than are available where running sequences share pages that they will let go of. */
  get reserved(): number {
    return this.#reserved;
  }

  /** Whether a page can be had without a promise. */
  get hasSpare(): boolean {
    return this.available > this.#reserved;
  }

  /** Promises `count` pages. Throws `MemoryLimit` with the numbers. */
  reserve(count: number): void {
    if (count > this.available - this.#reserved) throw this.#full(count);
    this.#reserved += count;
  }

  /** Promises a page in exchange for one that the same sequence let go of, whether or not others hold that one still. */
  renew(): void {
    this.#reserved++;
  }

  /** Gives back a promise of `count` pages. */
  unreserve(count: number): void {
    this.#reserved -= count;
  }

  /**
   * A page with one owner. `promised` takes it from a reservation; `covered` alone only asks for a page that is there, for a
   * sequence whose promises are used up. Throws `MemoryLimit`.
   */
  allocate(covered: boolean, promised: boolean = covered): number {
    if (!covered && !this.hasSpare) throw this.#full(1);
    if (this.#free.length === 0) this.evict();
    const page = this.#free.pop();
    if (page === undefined) throw this.#full(1);
    if (promised) this.#reserved--;
    this.#owners[page] = 1;
    return page;
  }

  /** Adds an owner to a held page. */
  retain(page: number): void {
    if (this.#owners[page] === 0 && this.#kept[page] === 1) this.#evictable--;
    this.#owners[page]++;
  }

  /** Takes an owner away; after the last one the page is free unless the cache keeps it. */
  release(page: number): void {
    if (this.#owners[page] === 0) throw new RangeError(`Page ${page} of ${this.#name} has no owner.`);
    if (--this.#owners[page] > 0) return;
    if (this.#kept[page] === 1) this.#evictable++;
    else this.#free.push(page);
  }

  /** Sequences that hold a page. */
  owners(page: number): number {
    return this.#owners[page];
  }

  /** Keeps a held page for the prefix cache. */
  keep(page: number): void {
    if (this.#owners[page] === 0) throw new RangeError(`Page ${page} of ${this.#name} has no owner.`);
    this.#kept[page] = 1;
  }

  /** Ends `keep`; without owners the page is free. */
  unkeep(page: number): void {
    if (this.#kept[page] === 0) return;
    this.#kept[page] = 0;
    if (this.#owners[page] > 0) return;
    this.#evictable--;
    this.#free.push(page);
  }

  /** Whether the prefix cache keeps a page. */
  isKept(page: number): boolean {
    return this.#kept[page] === 1;
  }

  #full(count: number): MemoryLimit {
    return new MemoryLimit(
      `The KV cache (${this.#name} layers)`,
      count * this.#pageBytes,
      Math.max(0, this.available - this.#reserved) * this.#pageBytes,
      `Wait for running replies, as batch() does, name a smaller maxTokens, dispose sessions, or raise the memory option where ` +
        `one was given.`,
    );
  }
}
