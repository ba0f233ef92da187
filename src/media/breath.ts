/** Pauses of long loops, in which timers, requests and signals of others get their turn. */
import { macrotask } from "../event_loop.ts";

/** Milliseconds of work between two pauses. */
const PAUSE_EVERY = 20;

/** The pauses of one loop. */
export class Breath {
  readonly #signal: AbortSignal | undefined;
  #last = performance.now();

  constructor(signal?: AbortSignal) {
    this.#signal = signal;
  }

  /** Pauses if the last pause is long enough ago. Rejects with the signal's reason. */
  async take(): Promise<void> {
    if (performance.now() - this.#last < PAUSE_EVERY) return;
    await macrotask();
    this.#last = performance.now();
    this.#signal?.throwIfAborted();
  }
}
