/** How many prompt rows the next forward takes, by the time that earlier ones took. Times are in seconds. */

/** Limits of a model's chunks. */
export interface PaceOptions {
  /** rows of a chunk at most */ chunkRows: number;
  /** predicted time of a forward at most */ chunkSeconds: number;
  /** rows of a chunk at least, whatever their predicted time, while no stream waits for its next token */
  leastChunkRows: number;
}

/** Rows of a chunk at least while streams wait: slow devices must get on with prompts too. */
const LEAST_SHARED_ROWS = 16;
/** Rows of the first chunk beside streams, before any was timed. */
const FIRST_SHARED_ROWS = 64;

/** See the head of this file. */
export class Pace {
  readonly #options: PaceOptions;
  /** rows of a chunk at most; halved when the device gave up on one */
  #limit: number;
  #secondsPerRow = 0;
  #decodeSeconds = 0;

  constructor(options: PaceOptions) {
    this.#options = options;
    this.#limit = options.chunkRows;
  }

  /** Rows that the next chunk may have; `shared`: streams wait for their next token meanwhile. */
  rows(shared: boolean): number {
    const { chunkSeconds, leastChunkRows } = this.#options;
    if (this.#secondsPerRow === 0) return shared ? Math.min(this.#limit, FIRST_SHARED_ROWS) : this.#limit;
    const time = Math.max(0, chunkSeconds - (shared ? this.#decodeSeconds : 0));
    const fitting = Math.floor(time / this.#secondsPerRow / LEAST_SHARED_ROWS) * LEAST_SHARED_ROWS;
    return Math.min(this.#limit, Math.max(shared ? LEAST_SHARED_ROWS : leastChunkRows, fitting));
  }

  /** Learns from a forward. */
  note(promptRows: number, decodeRows: number, seconds: number): void {
    const mean = (before: number, now: number) => before === 0 ? now : (before + now) / 2;
    if (promptRows === 0) this.#decodeSeconds = mean(this.#decodeSeconds, seconds);
    else if (promptRows >= Math.min(LEAST_SHARED_ROWS, this.#options.leastChunkRows)) {
      const own = Math.max(0, seconds - (decodeRows > 0 ? this.#decodeSeconds : 0));
      this.#secondsPerRow = mean(this.#secondsPerRow, own / promptRows);
    }
  }

  /** After the device gave up on a chunk of `rows`: half of it at most from now on. Returns that. */
  halve(rows: number): number {
    return this.#limit = Math.ceil(rows / 2);
  }
}
