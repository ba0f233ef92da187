/** Stop texts in streamed text: found across any cut, and no more text held back than could still become one. */
export class StopText {
  readonly #stops: readonly string[];
  readonly #longest: number;
  #held = "";

  /** Without `stops` everything passes through. */
  constructor(stops: readonly string[]) {
    this.#stops = stops;
    this.#longest = Math.max(0, ...stops.map((stop) => stop.length));
  }

  /** Takes the next text. `text` can be shown now; `stopped`: it ends before a stop text. */
  push(piece: string): { text: string; stopped: boolean } {
    if (this.#longest === 0) return { text: piece, stopped: false };
    const text = this.#held + piece;
    let first = -1;
    for (const stop of this.#stops) {
      const at = text.indexOf(stop);
      if (at >= 0 && (first < 0 || at < first)) first = at;
    }
    if (first >= 0) {
      this.#held = "";
      return { text: text.slice(0, first), stopped: true };
    }
    const keep = this.#heldLength(text);
    this.#held = text.slice(text.length - keep);
    return { text: text.slice(0, text.length - keep), stopped: false };
  }

  /** What was held back, when nothing follows. */
  flush(): string {
    const text = this.#held;
    this.#held = "";
    return text;
  }

  /** Length of the longest end of `text` that begins a stop text. */
  #heldLength(text: string): number {
    for (let length = Math.min(text.length, this.#longest - 1); length > 0; length--) {
      const end = text.slice(text.length - length);
      if (this.#stops.some((stop) => stop.startsWith(end))) return length;
    }
    return 0;
  }
}
