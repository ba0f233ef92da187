/** Quantises blocks of rows on several threads. */
import { type AffineRows, quantizeRows } from "./affine.ts";
import type { BlockAnswer, BlockRequest } from "./worker.ts";

/** One thread, and the block that it works on. */
interface Thread {
  worker: Worker;
  block: PromiseWithResolvers<AffineRows> | null;
}

/** See the head of this file; disposal ends the threads. */
export class QuantizePool implements Disposable {
  readonly #threads: Thread[] = [];
  readonly #waiting: { request: BlockRequest; block: PromiseWithResolvers<AffineRows> }[] = [];

  /** `threads`: 0 quantises in the caller's own. */
  constructor(readonly threads: number) {}

  /** Quantises a block, whose values are handed over. */
  async run(request: BlockRequest): Promise<AffineRows> {
    if (this.threads === 0) {
      const { values, columns, format, importance } = request;
      return quantizeRows(values, columns, format, importance);
    }
    const block = Promise.withResolvers<AffineRows>();
    this.#waiting.push({ request, block });
    this.#next();
    return await block.promise;
  }

  [Symbol.dispose](): void {
    for (const { worker } of this.#threads) worker.terminate();
    this.#threads.length = 0;
    this.#waiting.length = 0;
  }

  #next(): void {
    const thread = this.#threads.find(({ block }) => block === null) ?? this.#start();
    const work = thread && this.#waiting.shift();
    if (!thread || !work) return;
    thread.block = work.block;
    thread.worker.postMessage(work.request, [work.request.values.buffer]);
  }

  #start(): Thread | undefined {
    if (this.#threads.length === this.threads) return undefined;
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
    const thread: Thread = { worker, block: null };
    const done = (settle: (block: PromiseWithResolvers<AffineRows>) => void) => {
      const { block } = thread;
      thread.block = null;
      if (block) settle(block);
      this.#next();
    };
    worker.onmessage = ({ data }: MessageEvent<BlockAnswer>) =>
      done((block) => "rows" in data ? block.resolve(data.rows) : block.reject(new Error(data.problem)));
    worker.onerror = (event) => {
      event.preventDefault();
      done((block) => block.reject(new Error(event.message)));
    };
    this.#threads.push(thread);
    return thread;
  }
}
