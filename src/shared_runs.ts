/** Work that callers share while it is under way: whoever wants the same thing meanwhile waits for the same run. */
import { unlessAborted } from "./abort.ts";

interface Run<T> {
  result: Promise<T>;
  /** those that still wait for the result */ callers: number;
  stop: AbortController;
}

/** See the head of this file. */
export class SharedRuns<T> {
  readonly #runs = new Map<string, Run<T>>();

  /**
   * The result of the run that `key` names: of the one under way, or of `work`, which begins then. A caller whose signal
   * aborts leaves at once with its reason, and the others keep their run; the signal that `work` gets aborts when all have
   * left. Rejects as `work` does.
   */
  async share(
    key: string,
    signal: AbortSignal | undefined,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    signal?.throwIfAborted();
    const run = this.#runs.get(key) ?? this.#start(key, work);
    run.callers++;
    try {
      return await unlessAborted(run.result, signal);
    } finally {
      if (--run.callers === 0) {
        run.stop.abort(); // which does nothing to a run that has ended
        if (this.#runs.get(key) === run) this.#runs.delete(key);
      }
    }
  }

  /** Begins a run, in a later microtask: its first caller listens to its own signal before. */
  #start(key: string, work: (signal: AbortSignal) => Promise<T>): Run<T> {
    const stop = new AbortController();
    const run = { result: Promise.resolve().then(() => work(stop.signal)), callers: 0, stop };
    this.#runs.set(key, run);
    return run;
  }
}
