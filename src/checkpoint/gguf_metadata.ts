/** The metadata of a GGUF file: typed entries by key. Short lists are values; long ones are places in the file. */
import { type Texts, TextsBuilder } from "../tokenizer/texts.ts";
import { CheckpointError } from "../errors.ts";
import { type ByteSource, Cursor } from "./byte_source.ts";
import { decodeUtf8 } from "./json.ts";

/** A list that stays in the file. */
export interface GgufList {
  /** Name of its elements' type, such as `string` or `f32`. */
  type: string;
  /** Elements. */
  count: number;
  /** Bytes from the start of the file to the first element. */
  offset: number;
  /** Bytes of all elements. */
  length: number;
}

/** One value. Integers beyond 2⁵³ are bigints; lists of at most `SHORT_LIST` numbers or booleans are values. */
export type GgufValue = number | bigint | boolean | string | number[] | boolean[] | GgufList;

/** Most elements of a list that is read with the header: one for each layer of the deepest model, and more. */
const SHORT_LIST = 1024;
const MAX_KEY_BYTES = 1024;
const MAX_STRING_BYTES = 4 * 2 ** 20;
const MAX_NESTING = 4;
/** Most elements of a list in all. */
const MAX_LIST = 1 << 26;

interface Scalar {
  name: string;
  bytes: number;
  read(view: DataView, at: number): number | bigint;
}

const SCALARS: ReadonlyMap<number, Scalar> = new Map([
  [0, { name: "u8", bytes: 1, read: (view, at) => view.getUint8(at) }],
  [1, { name: "i8", bytes: 1, read: (view, at) => view.getInt8(at) }],
  [2, { name: "u16", bytes: 2, read: (view, at) => view.getUint16(at, true) }],
  [3, { name: "i16", bytes: 2, read: (view, at) => view.getInt16(at, true) }],
  [4, { name: "u32", bytes: 4, read: (view, at) => view.getUint32(at, true) }],
  [5, { name: "i32", bytes: 4, read: (view, at) => view.getInt32(at, true) }],
  [6, { name: "f32", bytes: 4, read: (view, at) => view.getFloat32(at, true) }],
  [7, { name: "bool", bytes: 1, read: (view, at) => view.getUint8(at) }],
  [10, { name: "u64", bytes: 8, read: (view, at) => exact(view.getBigUint64(at, true)) }],
  [11, { name: "i64", bytes: 8, read: (view, at) => exact(view.getBigInt64(at, true)) }],
  [12, { name: "f64", bytes: 8, read: (view, at) => view.getFloat64(at, true) }],
]);
const STRING = 8, ARRAY = 9;

type Fail = (problem: string) => CheckpointError;

/** Bounds the bytes of all texts that one header puts into memory. */
export class TextBudget {
  #left: number;
  readonly #fail: Fail;

  /** `bytes` in all; `fail` makes the error of a broken file. */
  constructor(bytes: number, fail: Fail) {
    this.#left = bytes;
    this.#fail = fail;
  }

  /** The next text, of at most `most` bytes of valid UTF-8; `what` names it in errors. */
  text(cursor: Cursor, what: string, most: number): string {
    const length = cursor.u64();
    if (!(length <= most)) {
      throw this.#fail(`is malformed: ${what} has ${length || "more than 2^53"} bytes; the limit is ${most}`);
    }
    this.#left -= length;
    if (this.#left < 0) throw this.#fail("has too long texts in its header");
    try {
      return decodeUtf8(cursor.bytes(length), "invalid_gguf", what);
    } catch (error) {
      if (error instanceof CheckpointError && error.message.includes("UTF-8")) {
        throw this.#fail(`is malformed: ${what} is not valid UTF-8`);
      }
      throw error;
    }
  }
}

/** The next entry of a header. */
export function readEntry(cursor: Cursor, budget: TextBudget, fail: Fail): { key: string; value: GgufValue } {
  const key = budget.text(cursor, "a metadata key", MAX_KEY_BYTES);
  if (key === "") throw fail("is malformed: a metadata key is empty");
  const type = cursor.u32();
  const wrong = (problem: string) => fail(`is malformed: metadata "${key}" ${problem}`);
  if (type === STRING) return { key, value: budget.text(cursor, `metadata "${key}"`, MAX_STRING_BYTES) };
  if (type === ARRAY) return { key, value: readList(cursor, wrong) };
  const scalar = SCALARS.get(type);
  if (scalar === undefined) throw wrong(`has the unknown type ${type}`);
  const value = scalar.read(...cursor.view(scalar.bytes));
  return { key, value: scalar.name === "bool" ? truth(value, wrong) : value };
}

function readList(cursor: Cursor, wrong: Fail): number[] | boolean[] | GgufList {
  const type = cursor.u32();
  const count = listCount(cursor, wrong);
  const offset = cursor.position;
  const scalar = SCALARS.get(type);
  if (scalar !== undefined && count <= SHORT_LIST) {
    const values = Array.from({ length: count }, () => scalar.read(...cursor.view(scalar.bytes)));
    if (scalar.name === "bool") return values.map((value) => truth(value, wrong));
    return values.map((value) => typeof value === "number" ? value : NaN);
  }
  skipElements(cursor, type, count, 1, wrong);
  const name = scalar?.name ?? (type === STRING ? "string" : "list");
  return { type: name, count, offset, length: cursor.position - offset };
}

function listCount(cursor: Cursor, wrong: Fail): number {
  const count = cursor.u64();
  if (count <= MAX_LIST) return count;
  throw wrong(`is a list of ${count || "more than 2^53"} elements; the limit is ${MAX_LIST}`);
}

/** Walks over the elements of a list. */
function skipElements(cursor: Cursor, type: number, count: number, depth: number, wrong: Fail): void {
  const scalar = SCALARS.get(type);
  if (scalar !== undefined) return cursor.skip(count * scalar.bytes);
  if (type !== STRING && type !== ARRAY) throw wrong(`is a list of the unknown type ${type}`);
  if (type === ARRAY && depth === MAX_NESTING) throw wrong(`nests deeper than ${MAX_NESTING} lists`);
  if (count * (type === STRING ? 8 : 12) > cursor.left) {
    throw wrong(`declares ${count} elements and has ${cursor.left} bytes left for them`);
  }
  for (let i = 0; i < count; i++) {
    if (type === STRING) {
      const length = cursor.u64();
      if (!(length <= cursor.left)) {
        throw wrong(`has a text of ${length || "more than 2^53"} bytes, beyond its end`);
      }
      cursor.skip(length);
    } else {
      const inner = cursor.u32();
      skipElements(cursor, inner, listCount(cursor, wrong), depth + 1, wrong);
    }
  }
}

function truth(value: number | bigint, wrong: Fail): boolean {
  if (value === 0 || value === 1) return value === 1;
  throw wrong(`has the boolean ${value}; it must be 0 or 1`);
}

function exact(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

/** The entries of one file, each read with its type checked. */
export class GgufMetadata {
  readonly #values = new Map<string, GgufValue>();

  /** `file` names the file in errors. */
  constructor(readonly file: string) {}

  /** Whether there is an entry. */
  has(key: string): boolean {
    return this.#values.has(key);
  }

  /** The value, if any. */
  get(key: string): GgufValue | undefined {
    return this.#values.get(key);
  }

  /** All keys, in the order of the file. */
  keys(): string[] {
    return [...this.#values.keys()];
  }

  /** Adds an entry. */
  set(key: string, value: GgufValue): void {
    this.#values.set(key, value);
  }

  /** The error "metadata `key` is …; it must be `rule`". */
  wrong(key: string, rule: string): CheckpointError {
    return new CheckpointError(
      "invalid_config",
      `${this.file}: metadata "${key}" is ${
        shown(this.get(key))
      }; it must be ${rule}. Convert the model again.`,
    );
  }

  /** A text; `or` where there is none. */
  string(key: string, or?: string): string {
    const value = this.get(key) ?? or;
    if (typeof value !== "string") throw this.wrong(key, "a text");
    return value;
  }

  /** A finite number; `or` where there is none. */
  number(key: string, or?: number): number {
    const value = this.get(key) ?? or;
    if (typeof value !== "number" || !Number.isFinite(value)) throw this.wrong(key, "a finite number");
    return value;
  }

  /** An integer from 0; `or` where there is none. */
  integer(key: string, or?: number): number {
    const value = this.get(key) ?? or;
    if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) {
      throw this.wrong(key, "an integer from 0");
    }
    return value;
  }

  /** A boolean; `or` where there is none. */
  boolean(key: string, or: boolean): boolean {
    const value = this.get(key) ?? or;
    if (typeof value !== "boolean") throw this.wrong(key, "true or false");
    return value;
  }
}

/**
 * The texts of the list under `key`, in order, read from the file that the metadata came from. Throws `CheckpointError`
 * for another type and for texts that are not valid UTF-8.
 */
export function readTexts(source: ByteSource, metadata: GgufMetadata, key: string): Texts {
  const list = metadata.get(key);
  if (!isList(list) || list.type !== "string") throw metadata.wrong(key, "a list of texts");
  const what = `Metadata "${key}" of ${metadata.file}`;
  const cursor = cursorOf(source, list, what);
  // A text has no more UTF-16 units than bytes, and 8 more bytes say how many.
  const texts = new TextsBuilder(list.count, list.length - 8 * list.count);
  let room = new Uint8Array(MAX_TOKEN_BYTES);
  for (let i = 0; i < list.count; i++) {
    const length = cursor.u64();
    if (length <= room.length) cursor.copyTo(room, 0, length);
    else room = cursor.bytes(length);
    if (!texts.addUtf8(room, 0, length)) {
      throw new CheckpointError("invalid_gguf", `${what} is not valid UTF-8. Download the file again.`);
    }
  }
  return texts.finish();
}

/** Bytes of a text for which there is room at once. */
const MAX_TOKEN_BYTES = 1024;
/** Bytes of numbers that are read at a time. */
const CHUNK_BYTES = 1 << 16;

/** The numbers of the list under `key`, as `readTexts`. */
export function readNumbers(source: ByteSource, metadata: GgufMetadata, key: string): ArrayLike<number> {
  const list = metadata.get(key);
  if (Array.isArray(list) && list.every((value) => typeof value === "number")) return list;
  const scalar = isList(list) ? [...SCALARS.values()].find(({ name }) => name === list.type) : undefined;
  if (scalar === undefined || scalar.name === "bool") throw metadata.wrong(key, "a list of numbers");
  const { count } = list as GgufList;
  const cursor = cursorOf(source, list as GgufList, `Metadata "${key}" of ${metadata.file}`);
  if (scalar.name === "i32") return new Int32Array(bytesOf(cursor, 4 * count));
  if (scalar.name === "f32") return new Float32Array(bytesOf(cursor, 4 * count));
  return Float64Array.from({ length: count }, () => Number(scalar.read(...cursor.view(scalar.bytes))));
}

/** The next bytes, as every machine of Deno's has numbers. */
function bytesOf(cursor: Cursor, length: number): ArrayBuffer {
  const bytes = new Uint8Array(length);
  for (let at = 0; at < length; at += CHUNK_BYTES) {
    cursor.copyTo(bytes, at, Math.min(CHUNK_BYTES, length - at));
  }
  return bytes.buffer;
}

function isList(value: GgufValue | undefined): value is GgufList {
  return typeof value === "object" && !Array.isArray(value);
}

function cursorOf(source: ByteSource, { offset, length }: GgufList, what: string): Cursor {
  return new Cursor(
    source,
    offset,
    offset + length,
    (problem) => new CheckpointError("invalid_gguf", `${what} ${problem}. Download the file again.`),
  );
}

function shown(value: GgufValue | undefined): string {
  if (value === undefined) return "missing";
  if (typeof value === "bigint") return String(value);
  if (typeof value === "object" && !Array.isArray(value)) return `a list of ${value.count} ${value.type}`;
  const text = JSON.stringify(value);
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}
