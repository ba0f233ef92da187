/** Ownership of one native object: when it is released, and what happens to calls before and after that. */
import { Disposed } from "../src/errors.ts";

/** Nonblocking calls under way. Keeps handles and buffers alive until the library is done with them. */
const callsUnderWay = new Set<readonly unknown[]>();

/** Releases objects whose owner was forgotten without being disposed. */
const forgotten = new FinalizationRegistry<() => void>((release) => release());

/**
 * A native object and its one reference. Disposing during nonblocking calls marks it closed at once and releases it after the last of
 * them has returned.
 */
export class Handle {
  readonly #name: string;
  readonly #pointer: bigint;
  readonly #release: (pointer: bigint) => void;
  #calls = 0;
  #closed = false;
  #waiting: (() => void)[] = [];

  /** Takes over the reference to `pointer`. `owner` is the object that users hold; `name` is for messages. */
  constructor(name: string, owner: object, pointer: bigint, release: (pointer: bigint) => void) {
    this.#name = name;
    this.#pointer = pointer;
    this.#release = release;
    forgotten.register(owner, () => release(pointer), this);
  }

  /** Whether it was closed or disposed. */
  get closed(): boolean {
    return this.#closed;
  }

  /** The pointer, for a blocking call. Throws `Disposed`. */
  get pointer(): bigint {
    if (this.#closed) throw new Disposed(this.#name);
    return this.#pointer;
  }

  /** Makes a nonblocking call; `kept` (the owner and every buffer of the call) stays alive until it returns. */
  async use<T>(kept: readonly unknown[], call: (pointer: bigint) => Promise<T>): Promise<T> {
    using held = this.hold();
    callsUnderWay.add(kept);
    try {
      return await call(held.pointer);
    } finally {
      callsUnderWay.delete(kept);
    }
  }

  /** The pointer, and the object kept until this is disposed, as a call under way keeps it. Throws `Disposed`. */
  hold(): Disposable & { pointer: bigint } {
    return { pointer: this.enter(), [Symbol.dispose]: () => this.leave() };
  }

  /** As `hold`, without an object: the pointer, for a call that ends with `leave`. Throws `Disposed`. */
  enter(): bigint {
    const pointer = this.pointer;
    this.#calls++;
    return pointer;
  }

  /** Ends a call that began with `enter`. */
  leave(): void {
    this.#calls--;
    if (this.#closed && this.#calls === 0) this.#finish();
  }

  /** Releases the object, once no call is under way. Does nothing the second time; returns whether it was the first. */
  dispose(): boolean {
    if (this.#closed) return false;
    this.#closed = true;
    forgotten.unregister(this);
    if (this.#calls === 0) this.#finish();
    return true;
  }

  /** As `dispose`, but throws `Disposed` the second time. */
  close(): void {
    if (!this.dispose()) throw new Disposed(this.#name);
  }

  /** As `dispose`, and waits until the object is released. */
  async disposeAsync(): Promise<void> {
    this.dispose();
    if (this.#calls > 0) await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  #finish(): void {
    this.#release(this.#pointer);
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}
