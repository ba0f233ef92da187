/** First come, first served access to something that one caller may use at a time. */
export class Turns {
  #tail: Promise<unknown> = Promise.resolve();

  /**
   * Runs `work` once all earlier work has ended. Rejects at once with the signal's reason if it aborts while waiting;
   * work that has begun must heed the signal itself.
   */
  take<T>(signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      let waiting = true;
      const abort = () => {
        waiting = false;
        reject(signal?.reason);
      };
      if (signal?.aborted) return abort();
      signal?.addEventListener("abort", abort, { once: true });
      this.#tail = this.#tail.then(async () => {
        signal?.removeEventListener("abort", abort);
        if (!waiting) return;
        try {
          resolve(await work());
        } catch (error) {
          reject(error);
        }
      });
    });
  }

  /** Resolves when all work asked for so far has ended. */
  async idle(): Promise<void> {
    await this.#tail;
  }
}
