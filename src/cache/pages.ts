/** Pools of KV pages: which pages of a group's buffer are free, and how many owners each of the others has. */
import { MemoryLimit } from "../errors.ts";

/** The pages of one group. A page is free, or held by one or more owners. */
export class PagePool {
  /** Pages in all. */
  readonly capacity: number;
  readonly #name: string;
  readonly #pageBytes: number;
  readonly #owners: Uint32Array;
  /** free pages, the next one last */
  readonly #free: number[];
  #reserved = 0;

  /** `name` and `pageBytes` are for messages. */
  constructor(name: string, capacity: number, pageBytes: number) {
    this.#name = name;
    this.capacity = capacity;
    this.#pageBytes = pageBytes;
    this.#owners = new Uint32Array(capacity);
    this.#free = Array.from({ length: capacity }, (_, i) => capacity - 1 - i);
  }

  /** Pages that nobody holds, reserved ones included. */
  get free(): number {
    return this.#free.length;
  }

  /** Promised pages; more than are free where running sequences share pages that they will let go of. */
  get reserved(): number {
    return this.#reserved;
  }

  /** Promises `count` pages. Throws `MemoryLimit` with the numbers. */
  reserve(count: number): void {
    if (count > this.#free.length - this.#reserved) throw this.#full(count);
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

  /** A free page with one owner; `promised` takes it from a reservation. Throws `MemoryLimit`. */
  allocate(promised: boolean): number {
    if (!promised && this.#free.length <= this.#reserved) throw this.#full(1);
    const page = this.#free.pop();
    if (page === undefined) throw this.#full(1);
    if (promised) this.#reserved--;
    this.#owners[page] = 1;
    return page;
  }

  /** Adds an owner. */
  retain(page: number): void {
    this.#owners[page]++;
  }

  /** Takes an owner away; the last one frees the page. */
  release(page: number): void {
    if (this.#owners[page] === 0) throw new RangeError(`Page ${page} of ${this.#name} is free already.`);
    if (--this.#owners[page] === 0) this.#free.push(page);
  }

  /** Owners of a page. */
  owners(page: number): number {
    return this.#owners[page];
  }

  #full(count: number): MemoryLimit {
    return new MemoryLimit(
      `The KV cache (${this.#name} layers)`,
      count * this.#pageBytes,
      Math.max(0, this.#free.length - this.#reserved) * this.#pageBytes,
      `Wait for running replies, dispose sessions, or load with a larger "memory".`,
    );
  }
}
