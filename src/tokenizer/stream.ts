/**
 * Ids back to text, one at a time. Byte tokens gather until they make a character; a byte that can no longer
 * become part of one counts as U+FFFD by itself.
 */

const REPLACEMENT = "\uFFFD";

/** Turns UTF-8 bytes that arrive singly into text as soon as each character is complete. */
export class Utf8Assembler {
  #pending: number[] = []; // a proper prefix of one character
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  /** The text that is certain now. */
  push(byte: number): string {
    this.#pending.push(byte);
    let text = "";
    while (this.#pending.length > 0) {
      const wanted = sequenceLength(this.#pending);
      if (wanted === 0) {
        text += REPLACEMENT;
        this.#pending.shift();
      } else if (wanted > this.#pending.length) {
        break;
      } else {
        text += this.#decoder.decode(Uint8Array.from(this.#pending.splice(0, wanted)));
      }
    }
    return text;
  }

  /** Gives up on an unfinished character: one U+FFFD for each of its bytes. */
  flush(): string {
    const text = REPLACEMENT.repeat(this.#pending.length);
    this.#pending = [];
    return text;
  }
}

/** Bytes of the character that `bytes` begin; 0 when no valid character begins so. */
function sequenceLength(bytes: readonly number[]): number {
  const [first, second] = bytes;
  const length = first < 0x80
    ? 1
    : first < 0xc2
    ? 0
    : first < 0xe0
    ? 2
    : first < 0xf0
    ? 3
    : first < 0xf5
    ? 4
    : 0;
  // The second byte's range excludes overlong forms, surrogates and code points beyond U+10FFFF.
  if (length > 1 && second !== undefined) {
    const low = first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
    const high = first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
    if (second < low || second > high) return 0;
  }
  for (let i = 2; i < Math.min(length, bytes.length); i++) if (bytes[i] < 0x80 || bytes[i] > 0xbf) return 0;
  return length;
}

/**
 * Streaming decoder of one reply. The pieces that `push` and `flush` return, joined, equal `decode` of the ids.
 * Text that ends in U+FFFD is held back until more follows, since it may be the start of something.
 */
export class TokenStream {
  readonly #pieceOf: (id: number) => number | string | undefined;
  readonly #bytes = new Utf8Assembler();
  #held = "";

  /**
   * Made by `Tokenizer.stream`. `pieceOf` gives what an id contributes: a byte, text, or undefined for nothing; it
   * throws for ids outside the vocabulary.
   */
  constructor(pieceOf: (id: number) => number | string | undefined) {
    this.#pieceOf = pieceOf;
  }

  /** The text that is complete after this id; often empty inside a character. Throws TokenizerError for an unknown id. */
  push(id: number): string {
    const piece = this.#pieceOf(id);
    if (piece === undefined) return "";
    this.#held += typeof piece === "number" ? this.#bytes.push(piece) : this.#bytes.flush() + piece;
    return this.#held.endsWith(REPLACEMENT) ? "" : this.#release();
  }

  /** What is still held back, unfinished characters as U+FFFD; the stream can then be used again. */
  flush(): string {
    this.#held += this.#bytes.flush();
    return this.#release();
  }

  #release(): string {
    const text = this.#held;
    this.#held = "";
    return text;
  }
}
