/** Finds added tokens in text: leftmost first, the longest where several start at one place. */
import { PairTable } from "./pairs.ts";

/** A trie over the exact texts of some added tokens, whose nodes are numbers: real vocabularies have 20,000. */
export class AddedMatcher {
  readonly #edges = new PairTable(16); // (node, UTF-16 unit) → id of the token that ends there or -1, node; 0 is the root
  readonly #starts = new Uint8Array(0x10000); // 1 for units that begin a token: most text stops here
  #nodes = 1;

  /** Adds a token; its text is not empty. Of two with one text, the last counts. */
  add(text: string, id: number): void {
    this.#starts[text.charCodeAt(0)] = 1;
    for (let i = 0, node = 0; i < text.length; i++) {
      const unit = text.charCodeAt(i), edge = this.#edges.find(node, unit);
      const child = edge < 0 ? this.#nodes++ : this.#edges.result(edge);
      const ends = i + 1 === text.length;
      if (edge < 0 || ends) this.#edges.set(node, unit, ends ? id : -1, child);
      node = child;
    }
  }

  /** Calls `onText` for each stretch between tokens (never empty) and `onToken` for each token, in order. */
  split(text: string, onText: (text: string) => void, onToken: (id: number) => void): void {
    let from = 0; // start of the stretch that no token has claimed
    for (let at = 0; at < text.length;) {
      if (this.#starts[text.charCodeAt(at)] === 0) {
        at++;
        continue;
      }
      let id = -1, end = at;
      for (let i = at, node = 0; i < text.length; i++) {
        const edge = this.#edges.find(node, text.charCodeAt(i));
        if (edge < 0) break;
        node = this.#edges.result(edge);
        if (this.#edges.rank(edge) >= 0) id = this.#edges.rank(edge), end = i + 1;
      }
      if (id < 0) {
        at++;
        continue;
      }
      if (at > from) onText(text.slice(from, at));
      onToken(id);
      from = at = end;
    }
    if (from < text.length) onText(text.slice(from));
  }
}
