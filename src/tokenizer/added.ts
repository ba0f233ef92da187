/** Finds added tokens in text: leftmost first, the longest where several start at one place. */

interface Node {
  id: number; // token that ends here, or -1
  next: Map<number, Node> | undefined; // by UTF-16 unit
}

/** A trie over the exact texts of some added tokens. */
export class AddedMatcher {
  readonly #root: Node = { id: -1, next: undefined };
  readonly #starts = new Uint8Array(0x10000); // 1 for units that begin a token: most text stops here

  /** `tokens`: pairs of text (not empty) and id. */
  constructor(tokens: Iterable<readonly [text: string, id: number]>) {
    for (const [text, id] of tokens) {
      this.#starts[text.charCodeAt(0)] = 1;
      let node = this.#root;
      for (let i = 0; i < text.length; i++) {
        const unit = text.charCodeAt(i);
        node.next ??= new Map();
        let child = node.next.get(unit);
        if (child === undefined) node.next.set(unit, child = { id: -1, next: undefined });
        node = child;
      }
      node.id = id;
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
      let node: Node | undefined = this.#root;
      let id = -1, end = at;
      for (let i = at; i < text.length; i++) {
        node = node.next?.get(text.charCodeAt(i));
        if (node === undefined) break;
        if (node.id >= 0) id = node.id, end = i + 1;
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
