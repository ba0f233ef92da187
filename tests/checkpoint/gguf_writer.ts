/** Writes GGUF files of any content, sound or broken. */
import { concat } from "../support/bytes.ts";

/** Type numbers of metadata values. */
export const VALUE_TYPES = {
  u8: 0,
  i8: 1,
  u16: 2,
  i16: 3,
  u32: 4,
  i32: 5,
  f32: 6,
  bool: 7,
  string: 8,
  array: 9,
  u64: 10,
  i64: 11,
  f64: 12,
} as const;

type ValueType = keyof typeof VALUE_TYPES;

/** One value; `of` is the type of a list's elements. */
export type Value =
  | { type: Exclude<ValueType, "array">; value: number | bigint | boolean | string }
  | { type: "array"; of: ValueType; value: readonly unknown[] };

/** One tensor; `shape` is row-major, `type` the number. */
export interface TensorEntry {
  name: string;
  shape: number[];
  type: number;
  data: Uint8Array;
  /** bytes from the start of the data; the next free place unless given */ offset?: number;
}

/** What a file holds; each of the later fields breaks something. */
export interface GgufContent {
  metadata?: [key: string, value: Value][];
  tensors?: TensorEntry[];
  magic?: string;
  version?: number;
  alignment?: number;
  tensorCount?: bigint;
  entryCount?: bigint;
}

/** Appends little-endian numbers and texts. */
export class ByteWriter {
  readonly #parts: Uint8Array[] = [];
  length = 0;

  bytes(bytes: Uint8Array): this {
    this.#parts.push(bytes);
    this.length += bytes.length;
    return this;
  }

  u32(value: number): this {
    return this.number("u32", value);
  }

  u64(value: number | bigint): this {
    return this.number("u64", value);
  }

  text(text: string): this {
    const bytes = new TextEncoder().encode(text);
    return this.u64(bytes.length).bytes(bytes);
  }

  number(type: ValueType, value: number | bigint | boolean): this {
    const view = new DataView(new ArrayBuffer(8));
    const size = { u8: 1, i8: 1, bool: 1, u16: 2, i16: 2, u32: 4, i32: 4, f32: 4 }[type as string] ?? 8;
    if (type === "f32") view.setFloat32(0, Number(value), true);
    else if (type === "f64") view.setFloat64(0, Number(value), true);
    else view.setBigInt64(0, BigInt.asIntN(64, BigInt(value)), true);
    return this.bytes(new Uint8Array(view.buffer, 0, size));
  }

  value(type: ValueType, value: unknown, of?: ValueType): this {
    if (type === "string") return this.text(value as string);
    if (type !== "array") return this.number(type, value as number);
    this.u32(VALUE_TYPES[of!]).u64((value as unknown[]).length);
    for (const element of value as unknown[]) this.value(of!, element);
    return this;
  }

  finish(): Uint8Array<ArrayBuffer> {
    return concat(this.#parts);
  }
}

/** A tensor and where its data begin. */
type Placed = Omit<TensorEntry, "data"> & { offset: number };

/** The bytes of a file up to its data. */
export function writeHead(
  content: Omit<GgufContent, "tensors">,
  tensors: readonly Placed[],
): Uint8Array<ArrayBuffer> {
  const { metadata = [], alignment = ALIGNMENT } = content;
  const head = new ByteWriter().bytes(new TextEncoder().encode(content.magic ?? "GGUF"));
  head.u32(content.version ?? 3);
  head.u64(content.tensorCount ?? tensors.length).u64(content.entryCount ?? metadata.length);
  for (const [key, value] of metadata) {
    head.text(key).u32(VALUE_TYPES[value.type]);
    head.value(value.type, value.value, value.type === "array" ? value.of : undefined);
  }
  for (const { name, shape, type, offset } of tensors) {
    head.text(name).u32(shape.length);
    for (const size of shape.toReversed()) head.u64(size);
    head.u32(type).u64(offset);
  }
  const bytes = new Uint8Array(Math.ceil(head.length / alignment) * alignment);
  bytes.set(head.finish());
  return bytes;
}

/** Tensors begin at multiples of it. */
export const ALIGNMENT = 32;

/** The bytes of a file. */
export function writeGguf(content: GgufContent): Uint8Array<ArrayBuffer> {
  const { tensors = [], alignment = ALIGNMENT } = content;
  let end = 0;
  const placed = tensors.map((tensor) => {
    const offset = tensor.offset ?? Math.ceil(end / alignment) * alignment;
    end = Math.max(end, offset + tensor.data.length);
    return { ...tensor, offset };
  });
  const head = writeHead(content, placed);
  const start = head.length;
  // Offsets far away are for headers that are to be refused.
  const bytes = new Uint8Array(start + Math.min(end, 1 << 24));
  bytes.set(head);
  for (const { data, offset } of placed) {
    if (start + offset + data.length <= bytes.length) bytes.set(data, start + offset);
  }
  return bytes;
}
