/**
 * JSON as checkpoints must be read: what `JSON.parse` forgives (a key twice, any depth, any number of items)
 * is refused here, in linear time and before anything large is allocated.
 */
import { CheckpointError } from "../errors.ts";

/** Bounds of one JSON text. */
export interface JsonLimits {
  /** Nested objects and arrays at most. */
  depth: number;
  /** Commas, objects and arrays at most, which bounds the memory of the parsed value. */
  items: number;
}

/** Bounds of `config.json` and its like: far above any real file. */
export const CONFIG_LIMITS: JsonLimits = { depth: 32, items: 1_000_000 };

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Decodes strict UTF-8 (no byte order mark), or throws a `CheckpointError` with `code` that names `what`. */
export function decodeUtf8(bytes: Uint8Array, code: string, what: string): string {
  try {
    return UTF8.decode(bytes);
  } catch (cause) {
    throw new CheckpointError(code, `${what} is not valid UTF-8. Download the file again.`, { cause });
  }
}

/**
 * Parses `text` within `limits` and refuses objects that hold a key twice.
 * Throws a `CheckpointError` with `code` that names `what`.
 */
export function parseStrictJson(text: string, code: string, what: string, limits: JsonLimits): unknown {
  checkStructure(text, code, what, limits);
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new CheckpointError(code, `${what} is not valid JSON. Download the file again.`, { cause });
  }
}

const QUOTE = 0x22, BACKSLASH = 0x5c, COMMA = 0x2c;
const OPEN_OBJECT = 0x7b, CLOSE_OBJECT = 0x7d, OPEN_ARRAY = 0x5b, CLOSE_ARRAY = 0x5d;

/** One pass over brackets, commas and strings. What is not JSON at all is left for `JSON.parse` to refuse. */
function checkStructure(text: string, code: string, what: string, limits: JsonLimits): void {
  const open: (Set<string> | null)[] = []; // the keys of each open object, null for an array
  let keys: Set<string> | null = null;
  let expectsKey = false;
  let items = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === QUOTE) {
      const end = endOfString(text, i);
      if (keys !== null && expectsKey) {
        const key = decodeKey(text.slice(i, end + 1), code, what);
        if (keys.has(key)) throw new CheckpointError(code, `${what} has the key "${key}" twice.`);
        keys.add(key);
        expectsKey = false;
      }
      i = end;
    } else if (c === COMMA) {
      items++;
      expectsKey = keys !== null;
    } else if (c === OPEN_OBJECT || c === OPEN_ARRAY) {
      items++;
      keys = c === OPEN_OBJECT ? new Set() : null;
      expectsKey = keys !== null;
      open.push(keys);
      if (open.length > limits.depth) {
        throw new CheckpointError(code, `${what} nests deeper than ${limits.depth} levels.`);
      }
    } else if (c === CLOSE_OBJECT || c === CLOSE_ARRAY) {
      open.pop();
      keys = open.at(-1) ?? null;
      expectsKey = false;
    }
    if (items > limits.items) {
      throw new CheckpointError(code, `${what} has more than ${limits.items} items.`);
    }
  }
}

/** Index of the closing quote of the string that opens at `start`, or the end of the text. */
function endOfString(text: string, start: number): number {
  for (let i = start + 1; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === BACKSLASH) i++;
    else if (c === QUOTE) return i;
  }
  return text.length;
}

function decodeKey(quoted: string, code: string, what: string): string {
  if (!quoted.includes("\\")) return quoted.slice(1, -1);
  try {
    return JSON.parse(quoted);
  } catch (cause) {
    throw new CheckpointError(code, `${what} has a key that is not a JSON string.`, { cause });
  }
}
