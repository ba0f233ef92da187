/**
 * Strict GGUF headers, versions 2 and 3: magic, version, counts, metadata entries, tensor descriptions, then the data
 * of all tensors, each at a multiple of the alignment. Everything is read through a small window and held to stated
 * limits; long arrays (the vocabulary) stay in the file until somebody asks for them.
 */
import { CheckpointError } from "../errors.ts";
import { type ByteSource, Cursor } from "./byte_source.ts";
import { GGUF_BLOCKS } from "./gguf_types.ts";
import { GgufMetadata, readEntry, TextBudget } from "./gguf_metadata.ts";
import type { RawTensor } from "./tensor.ts";

/** Most bytes before the data of the tensors. */
export const MAX_GGUF_HEADER_BYTES: number = 64 * 2 ** 20;
/** Most metadata entries of one file. */
export const MAX_GGUF_ENTRIES: number = 16_384;
/** Most tensors of one file. */
export const MAX_GGUF_TENSORS: number = 16_384;
/** Most bytes of all keys, single texts and tensor names of one file. */
const MAX_GGUF_TEXT_BYTES = 16 * 2 ** 20;

const MAGIC = 0x46554747; // "GGUF"
const MAX_DIMENSIONS = 4;
const MAX_NAME_BYTES = 256;
const DEFAULT_ALIGNMENT = 32;
const MAX_ALIGNMENT = 1 << 20;
/** Bytes that the shortest entry (key of one byte, one byte of value) and tensor description take. */
const LEAST_ENTRY_BYTES = 14, LEAST_TENSOR_BYTES = 33;

/** Element types by number: name, elements of a block and bytes of it. */
const TYPES: ReadonlyMap<number, { name: string; elements: number; bytes: number }> = new Map([
  [0, { name: "F32", elements: 1, bytes: 4 }],
  [1, { name: "F16", elements: 1, bytes: 2 }],
  [30, { name: "BF16", elements: 1, bytes: 2 }],
  [24, { name: "I8", elements: 1, bytes: 1 }],
  [25, { name: "I16", elements: 1, bytes: 2 }],
  [26, { name: "I32", elements: 1, bytes: 4 }],
  [27, { name: "I64", elements: 1, bytes: 8 }],
  [28, { name: "F64", elements: 1, bytes: 8 }],
  ...Object.entries(GGUF_BLOCKS).map(([name, { number, elements, bytes }]) =>
    [number, { name: name.toUpperCase(), elements, bytes }] as const
  ),
]);

/** Names of types that are known and not supported. */
const OTHER_TYPES: Readonly<Record<number, string>> = {
  9: "Q8_1",
  15: "Q8_K",
  16: "IQ2_XXS",
  17: "IQ2_XS",
  18: "IQ3_XXS",
  19: "IQ1_S",
  21: "IQ3_S",
  22: "IQ2_S",
  29: "IQ1_M",
  34: "TQ1_0",
  35: "TQ2_0",
  39: "MXFP4",
};

/** What one file declares. */
export interface GgufHeader {
  /** 2 or 3. */
  version: number;
  /** Its metadata. */
  metadata: GgufMetadata;
  /** In the order of their data; shapes row-major, types by their GGML names. */
  tensors: RawTensor[];
}

/**
 * Parses the header of `source`. `file` names it in errors, `fileIndex` goes into the ranges of the tensors. Throws
 * `CheckpointError` that names the file, what is wrong with it, and the number.
 */
export function parseGguf(source: ByteSource, file: string, fileIndex: number): GgufHeader {
  const fail = (problem: string) => invalid(file, problem);
  const cursor = new Cursor(source, 0, MAX_GGUF_HEADER_BYTES, fail);
  const version = readVersion(cursor, file);
  const tensorCount = cursor.u64();
  const entryCount = cursor.u64();
  checkCount("tensors", tensorCount, MAX_GGUF_TENSORS, LEAST_TENSOR_BYTES, cursor, fail);
  checkCount("metadata entries", entryCount, MAX_GGUF_ENTRIES, LEAST_ENTRY_BYTES, cursor, fail);
  const budget = new TextBudget(MAX_GGUF_TEXT_BYTES, fail);
  const metadata = new GgufMetadata(file);
  for (let i = 0; i < entryCount; i++) {
    const { key, value } = readEntry(cursor, budget, fail);
    if (metadata.has(key)) throw fail(`has the metadata key "${key}" twice`);
    metadata.set(key, value);
  }
  const alignment = readAlignment(metadata, fail);
  const described: Described[] = [];
  const names = new Set<string>();
  for (let i = 0; i < tensorCount; i++) {
    const tensor = readTensor(cursor, budget, alignment, fail);
    if (names.has(tensor.name)) throw fail(`has the tensor "${tensor.name}" twice`);
    names.add(tensor.name);
    described.push(tensor);
  }
  const dataStart = Math.ceil(cursor.position / alignment) * alignment;
  const tensors = described.map(({ name, dtype, shape, offset, length }): RawTensor => ({
    name,
    dtype,
    shape,
    data: { file: fileIndex, offset: dataStart + offset, length },
  }));
  tensors.sort((a, b) => a.data.offset - b.data.offset);
  checkExtents(tensors, source.size, fail);
  return { version, metadata, tensors };
}

function readVersion(cursor: Cursor, file: string): number {
  const magic = cursor.u32();
  if (magic !== MAGIC) {
    throw invalid(file, `is no GGUF file: it begins with ${hex(magic)} instead of ${hex(MAGIC)}`);
  }
  const version = cursor.u32();
  if (version === 2 || version === 3) return version;
  const what = version >= 1 << 24 ? "is a big-endian GGUF file" : `has the GGUF version ${version}`;
  throw new CheckpointError(
    "unsupported_gguf",
    `${file} ${what}; little-endian files of versions 2 and 3 can be read. Convert the model again.`,
  );
}

function checkCount(
  what: string,
  count: number,
  most: number,
  leastBytes: number,
  cursor: Cursor,
  fail: (problem: string) => CheckpointError,
): void {
  if (!(count <= most)) throw fail(`declares ${count || "more than 2^53"} ${what}; the limit is ${most}`);
  if (count * leastBytes > cursor.left) {
    throw fail(`is truncated: it declares ${count} ${what} and has ${cursor.left} bytes left for them`);
  }
}

function readAlignment(metadata: GgufMetadata, fail: (problem: string) => CheckpointError): number {
  const alignment = metadata.get("general.alignment") ?? DEFAULT_ALIGNMENT;
  if (
    typeof alignment === "number" && Number.isInteger(alignment) && alignment >= 8 &&
    alignment <= MAX_ALIGNMENT && (alignment & (alignment - 1)) === 0
  ) {
    return alignment;
  }
  throw fail(`has the alignment ${alignment}; it must be a power of two from 8 to ${MAX_ALIGNMENT}`);
}

interface Described {
  name: string;
  dtype: string;
  shape: number[];
  /** Bytes from the start of the data. */
  offset: number;
  /** Bytes. */
  length: number;
}

function readTensor(
  cursor: Cursor,
  budget: TextBudget,
  alignment: number,
  fail: (problem: string) => CheckpointError,
): Described {
  const name = budget.text(cursor, "a tensor's name", MAX_NAME_BYTES);
  const wrong = (problem: string) => fail(`is malformed: tensor "${name}" ${problem}`);
  if (name === "") throw wrong("has no name");
  const rank = cursor.u32();
  if (rank < 1 || rank > MAX_DIMENSIONS) {
    throw wrong(`has ${rank} dimensions; there are 1 to ${MAX_DIMENSIONS}`);
  }
  const shape: number[] = [];
  let elements = 1;
  for (let d = 0; d < rank; d++) {
    const size = cursor.u64();
    if (!(size >= 1)) throw wrong(`has ${size === 0 ? "0" : "more than 2^53"} elements in dimension ${d}`);
    shape.unshift(size); // the file counts the columns first
    elements *= size;
  }
  if (!Number.isSafeInteger(elements * 8)) throw wrong(`has a shape [${shape}] that overflows`);
  const number = cursor.u32();
  const type = TYPES.get(number);
  if (type === undefined) throw wrong(`has ${typeName(number)}; there is ${known()}`);
  const columns = shape[shape.length - 1];
  if (columns % type.elements !== 0) {
    throw wrong(`has ${columns} columns, which blocks of ${type.elements} (${type.name}) do not divide`);
  }
  const offset = cursor.u64();
  if (!(offset <= Number.MAX_SAFE_INTEGER / 2)) throw wrong("lies beyond 2^52 bytes");
  if (offset % alignment !== 0) throw wrong(`lies at ${offset}, which is no multiple of ${alignment}`);
  return { name, dtype: type.name, shape, offset, length: elements / type.elements * type.bytes };
}

/** Tensors must lie inside the file and must not overlap. */
function checkExtents(
  tensors: RawTensor[],
  fileSize: number,
  fail: (problem: string) => CheckpointError,
): void {
  let end = 0;
  for (const { name, data } of tensors) {
    if (data.offset < end) throw fail(`is malformed: tensor "${name}" overlaps the one before it`);
    end = data.offset + data.length;
    if (end > fileSize) {
      throw fail(`is truncated: tensor "${name}" ends at byte ${end} and the file has ${fileSize}`);
    }
  }
}

function typeName(number: number): string {
  const name = OTHER_TYPES[number];
  return name === undefined ? `the unknown type ${number}` : `the type ${name} (${number})`;
}

function known(): string {
  return [...TYPES.values()].map(({ name }) => name).join(", ");
}

function hex(word: number): string {
  return `0x${word.toString(16).padStart(8, "0")}`;
}

function invalid(file: string, problem: string): CheckpointError {
  return new CheckpointError("invalid_gguf", `${file} ${problem}. Download or convert the file again.`);
}
