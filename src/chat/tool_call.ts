/**
 * Reads the tool calls that Gemma 4 writes: `call:NAME{key:value,…}`, where texts stand between quote tokens
 * (`<|"|>`, no escapes inside), keys and numbers are bare, and lists and mappings nest. What models get wrong often
 * (a quote left out, a bracket too many or too few) is repaired. Linear time, never throws.
 */

/** The raw text of a call, and where in it the quote control tokens stand. */
export interface RawToolCall {
  /** Text between the call tokens; each quote token is spelled `<|"|>` in it. */
  text: string;
  /** Offsets in `text` of the quotes that were control tokens, ascending; text that merely spells one is not here. */
  quotes: number[];
}

/** A call that could be read. */
export interface ParsedToolCall {
  /** The function. */
  name: string;
  /** Its arguments. */
  arguments: Record<string, unknown>;
  /** True if something had to be guessed. */
  repaired: boolean;
}

/** How a quote control token is spelled. */
export const QUOTE_TOKEN = '<|"|>';

/** Levels of lists and mappings in arguments. */
const MAX_DEPTH = 64;

/**
 * The call in `raw`, or undefined if it is not one. `complete` says that the model ended the call itself; a call that
 * was cut off must at least have its closing brace.
 */
export function parseToolCall(raw: RawToolCall, complete: boolean): ParsedToolCall | undefined {
  const open = raw.text.indexOf("{");
  if (open < 0) return undefined;
  const head = raw.text.slice(0, open).trim();
  const name = head.startsWith("call:") ? head.slice("call:".length).trim() : head;
  if (name === "" || raw.quotes.some((at) => at < open) || /[\s"'}[\]]/.test(name)) return undefined;
  const reader = new ArgumentReader(raw, open);
  const args = reader.mapping(0);
  if (args === undefined || (!complete && reader.unclosed)) return undefined;
  const rest = raw.text.slice(reader.at).trim();
  return { name, arguments: args, repaired: reader.repaired || rest !== "" || !head.startsWith("call:") };
}

/** One pass over the arguments; `at` only moves forward. */
class ArgumentReader {
  repaired = false;
  /** The end of the text came before the end of a mapping, list or text. */
  unclosed = false;
  readonly #text: string;
  readonly #quotes: number[];
  #nextQuote = 0; // index in #quotes of the first quote at or after `at`

  constructor(raw: RawToolCall, public at: number) {
    this.#text = raw.text;
    this.#quotes = raw.quotes;
  }

  /** `{key:value,…}` from its brace on. */
  mapping(depth: number): Record<string, unknown> | undefined {
    if (depth > MAX_DEPTH) return undefined;
    this.at++; // {
    const result: Record<string, unknown> = {};
    for (;;) {
      this.#skipSpace();
      const c = this.#text[this.at];
      if (c === undefined) return this.#endedEarly(result);
      if (c === "}") {
        this.at++;
        return result;
      }
      if (c === "]") { // one closer too many
        this.#skipOne();
        continue;
      }
      if (c === ",") {
        this.at++;
        continue;
      }
      const key = this.#key();
      if (key === undefined) return undefined;
      const value = this.#value(depth, "}");
      if (value === undefined) return undefined;
      // A plain assignment to "__proto__" would change the object's prototype.
      Object.defineProperty(result, key, { value, writable: true, enumerable: true, configurable: true });
    }
  }

  /** `[value,…]` from its bracket on. */
  #list(depth: number): unknown[] | undefined {
    if (depth > MAX_DEPTH) return undefined;
    this.at++; // [
    const result: unknown[] = [];
    for (;;) {
      this.#skipSpace();
      const c = this.#text[this.at];
      if (c === undefined) return this.#endedEarly(result);
      if (c === "]") {
        this.at++;
        return result;
      }
      if (c === "}") { // the list's own closer is missing: the brace belongs to the mapping around it
        this.repaired = true;
        return result;
      }
      if (c === ",") {
        this.at++;
        continue;
      }
      const value = this.#value(depth, "]");
      if (value === undefined) return undefined;
      result.push(value);
    }
  }

  /** A key and its colon. */
  #key(): string | undefined {
    const quote = this.#quoteAt(this.at);
    if (quote) {
      const key = this.#quoted();
      this.#skipSpace();
      if (this.#text[this.at] !== ":") return undefined;
      this.at++;
      return key;
    }
    const colon = this.#text.indexOf(":", this.at);
    // Both searches stop at the same colon or fail for good, so the time stays linear.
    if (colon < 0 || this.#quoteFrom(this.at) < colon) return undefined;
    let key = this.#text.slice(this.at, colon).trim();
    if (key === "" || /[{}[\],]/.test(key)) return undefined;
    const plain = /^"([^"\\]*)"$/.exec(key);
    if (plain !== null) {
      key = plain[1];
      this.repaired = true;
    }
    this.at = colon + 1;
    return key;
  }

  /** Any value; undefined if it is nested too deeply. `closer` ends the mapping or list around it. */
  #value(depth: number, closer: "}" | "]"): unknown {
    this.#skipSpace();
    const c = this.#text[this.at];
    if (this.#quoteAt(this.at)) {
      const value = this.#quoted();
      this.#skipJunk();
      return value;
    }
    if (c === "{" || c === "[") {
      const value = c === "{" ? this.mapping(depth + 1) : this.#list(depth + 1);
      if (value !== undefined) this.#skipJunk();
      return value;
    }
    return this.#bare(closer);
  }

  /** Text between two quote tokens. Without the second, it ends before the closers at the end. */
  #quoted(): string {
    const start = this.at + QUOTE_TOKEN.length;
    this.at = start;
    const end = this.#quoteFrom(start);
    if (end < this.#text.length) {
      this.at = end + QUOTE_TOKEN.length;
      return this.#text.slice(start, end);
    }
    this.repaired = true;
    this.unclosed = true;
    const closers = /[\]}\s]*$/.exec(this.#text.slice(Math.max(start, this.#text.length - 2 * MAX_DEPTH)))!;
    this.at = this.#text.length - closers[0].length;
    return this.#text.slice(start, this.at);
  }

  /** A number, boolean, null, or a text whose first quote, or both, are missing. */
  #bare(closer: "}" | "]"): unknown {
    const start = this.at;
    let end = start;
    const quote = this.#quoteFrom(start);
    while (end < quote && !",}]".includes(this.#text[end])) end++;
    const literal = literalValue(this.#text.slice(start, end).trim());
    if (literal !== undefined && (end < quote || end === this.#text.length)) {
      this.at = end;
      return literal;
    }
    // A quote that opens stands right after ":", "," or "["; any other closes a text that began without one.
    if (quote < this.#text.length && !":,[".includes(this.#text[quote - 1]) && quote > start) {
      this.repaired = true;
      this.at = quote + QUOTE_TOKEN.length;
      const value = this.#text.slice(start, quote);
      this.#skipJunk();
      return value;
    }
    const value = this.#text.slice(start, end).trim();
    this.repaired = true;
    this.at = end;
    if (this.#text[end] === undefined) this.unclosed = true;
    if (this.#text[end] !== closer && this.#text[end] !== "," && end === start) this.#skipOne();
    return unquoted(value);
  }

  /** Passes what stands between a value and the next comma or closer. */
  #skipJunk(): void {
    this.#skipSpace();
    while (this.at < this.#text.length && !",}]".includes(this.#text[this.at])) this.#skipOne();
  }

  #skipOne(): void {
    this.repaired = true;
    this.at += this.#quoteAt(this.at) ? QUOTE_TOKEN.length : 1;
  }

  #skipSpace(): void {
    while (" \t\r\n".includes(this.#text[this.at] ?? "x")) this.at++;
  }

  #endedEarly<T>(result: T): T {
    this.repaired = true;
    this.unclosed = true;
    return result;
  }

  #quoteAt(at: number): boolean {
    return this.#quoteFrom(at) === at && at < this.#text.length;
  }

  /** Offset of the first quote at or after `at`, or the length of the text. */
  #quoteFrom(at: number): number {
    while (this.#nextQuote < this.#quotes.length && this.#quotes[this.#nextQuote] < at) this.#nextQuote++;
    return this.#quotes[this.#nextQuote] ?? this.#text.length;
  }
}

const LITERALS = new Map<string, unknown>([
  ["true", true],
  ["True", true],
  ["false", false],
  ["False", false],
  ["null", null],
  ["None", null],
]);

/** The value of a bare number, boolean or null; undefined for anything else. */
function literalValue(text: string): unknown {
  if (LITERALS.has(text)) return LITERALS.get(text);
  if (text.length > 400 || !/^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(text)) return undefined;
  const number = Number(text);
  if (!Number.isFinite(number)) return undefined;
  // An integer that a double would change stays text, digit for digit.
  return /^-?\d+$/.test(text) && !Number.isSafeInteger(number) ? text : number;
}

/** A bare text without the plain double quotes that some models put around it. */
function unquoted(text: string): string {
  if (text.length < 2 || !text.startsWith('"') || !text.endsWith('"')) return text;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "string" ? value : text;
  } catch {
    return text;
  }
}
