/**
 * Strict safetensors headers: pure functions over bytes with stated limits. The layout is an 8-byte little-endian
 * length, a JSON header of that length, then the data of all tensors without gaps. The data may start at any
 * offset, an odd one too.
 */
import { CheckpointError } from "../errors.ts";
import { decodeUtf8, type JsonLimits, parseStrictJson } from "./json.ts";
import type { RawTensor } from "./tensor.ts";

/** Longest header in bytes: entries of some 100,000 tensors, which take about 150 bytes each. */
export const MAX_HEADER_BYTES: number = 16_000_000;
/** Most tensors in one file. */
export const MAX_TENSORS: number = 262_144;
/** Most dimensions of one tensor. */
const MAX_RANK = 8;

const PREFIX_BYTES = 8;
const INVALID = "invalid_safetensors";
// A tensor is one object with two arrays and at most MAX_RANK + 6 commas.
const HEADER_LIMITS: JsonLimits = { depth: 3, items: MAX_TENSORS * 18 };

/** Bits of one element, by the name that the header gives its type. */
const DTYPE_BITS: ReadonlyMap<string, number> = new Map([
  ["BOOL", 8],
  ["U8", 8],
  ["I8", 8],
  ["F8_E4M3", 8],
  ["F8_E5M2", 8],
  ["F8_E8M0", 8],
  ["U16", 16],
  ["I16", 16],
  ["F16", 16],
  ["BF16", 16],
  ["U32", 32],
  ["I32", 32],
  ["F32", 32],
  ["U64", 64],
  ["I64", 64],
  ["F64", 64],
]);

/** The tensors that one file declares. */
export interface SafetensorsHeader {
  /** In the order of their data. */
  tensors: RawTensor[];
  /** The writer's notes; not trusted for anything. */
  metadata: Map<string, string>;
}

/**
 * Length in bytes of the JSON header. `prefix` holds the first 8 bytes of the file, `fileSize` is in bytes, `file`
 * names it in errors. Throws `CheckpointError` if the file is too short or the header too long.
 */
export function headerLength(prefix: Uint8Array, fileSize: number, file: string): number {
  if (fileSize < PREFIX_BYTES || prefix.length < PREFIX_BYTES) {
    throw invalid(file, `is truncated: it has ${fileSize} bytes, fewer than the 8 of a header length`);
  }
  const length = new DataView(prefix.buffer, prefix.byteOffset, PREFIX_BYTES).getBigUint64(0, true);
  if (length > BigInt(MAX_HEADER_BYTES)) {
    throw invalid(file, `declares a header of ${length} bytes; the limit is ${MAX_HEADER_BYTES}`);
  }
  if (PREFIX_BYTES + Number(length) > fileSize) {
    throw invalid(file, `is truncated: its header takes ${length} bytes and the file has ${fileSize}`);
  }
  return Number(length);
}

/**
 * Parses the JSON header (without the 8-byte length) of a file of `fileSize` bytes. `fileIndex` goes into the
 * ranges of the tensors. Throws `CheckpointError` that names the file and what is wrong with it.
 */
export function parseHeader(
  header: Uint8Array,
  fileSize: number,
  file: string,
  fileIndex: number,
): SafetensorsHeader {
  const what = `The header of ${file}`;
  if (header[0] !== 0x7b) throw invalid(file, `has a header that does not start with "{"`);
  const value = parseStrictJson(decodeUtf8(header, INVALID, what), INVALID, what, HEADER_LIMITS);
  const entries = Object.entries(value as Record<string, unknown>);
  if (entries.length > MAX_TENSORS) {
    throw invalid(file, `declares ${entries.length} tensors; the limit is ${MAX_TENSORS}`);
  }
  const dataStart = PREFIX_BYTES + header.length;
  const tensors: RawTensor[] = [];
  let metadata = new Map<string, string>();
  for (const [name, entry] of entries) {
    if (name === "__metadata__") metadata = parseMetadata(entry, file);
    else tensors.push(parseTensor(name, entry, dataStart, file, fileIndex));
  }
  tensors.sort((a, b) => a.data.offset - b.data.offset || a.data.length - b.data.length);
  checkContiguous(tensors, dataStart, fileSize, file);
  return { tensors, metadata };
}

function parseMetadata(entry: unknown, file: string): Map<string, string> {
  if (!isRecord(entry)) throw invalid(file, `has a "__metadata__" that is not an object`);
  const metadata = new Map<string, string>();
  for (const [key, value] of Object.entries(entry)) {
    if (typeof value !== "string") {
      throw invalid(file, `has a "__metadata__" entry "${key}" that is not text`);
    }
    metadata.set(key, value);
  }
  return metadata;
}

function parseTensor(
  name: string,
  entry: unknown,
  dataStart: number,
  file: string,
  fileIndex: number,
): RawTensor {
  const wrong = (problem: string) => invalid(file, `is malformed: tensor "${name}" ${problem}`);
  if (!isRecord(entry)) throw wrong("is not an object");
  for (const key of Object.keys(entry)) {
    if (key !== "dtype" && key !== "shape" && key !== "data_offsets") {
      throw wrong(`has the unknown key "${key}"`);
    }
  }
  const { dtype, shape, data_offsets: offsets } = entry;
  const bits = typeof dtype === "string" ? DTYPE_BITS.get(dtype) : undefined;
  if (bits === undefined) throw wrong(`has the unknown dtype ${JSON.stringify(dtype)}`);
  if (!isSizes(shape)) throw wrong("has a shape that is not a list of sizes");
  if (shape.length > MAX_RANK) throw wrong(`has ${shape.length} dimensions; the limit is ${MAX_RANK}`);
  if (!isSizes(offsets) || offsets.length !== 2) throw wrong("has data_offsets that are not two positions");
  const [begin, end] = offsets;
  if (begin > end) throw wrong(`ends at ${end}, before it begins at ${begin}`);

  // Sizes of 0 are left out of the overflow test, or they would hide a product that left the safe range before.
  const widest = shape.reduce((product, size) => product * Math.max(size, 1), bits / 8);
  if (!Number.isSafeInteger(widest)) throw wrong(`has a shape [${shape}] that overflows`);
  const bytes = shape.includes(0) ? 0 : widest;
  if (bytes !== end - begin) {
    throw wrong(`takes ${end - begin} bytes, but ${dtype} [${shape}] takes ${bytes}`);
  }
  return {
    name,
    dtype: dtype as string,
    shape,
    data: { file: fileIndex, offset: dataStart + begin, length: bytes },
  };
}

/** Tensors must fill the data without overlaps, gaps or a rest. */
function checkContiguous(tensors: RawTensor[], dataStart: number, fileSize: number, file: string): void {
  let end = dataStart;
  for (const { name, data } of tensors) {
    if (data.offset < end) throw invalid(file, `is malformed: tensor "${name}" overlaps the one before it`);
    if (data.offset > end) {
      throw invalid(file, `is malformed: ${data.offset - end} unused bytes lie before tensor "${name}"`);
    }
    end = data.offset + data.length;
    if (end > fileSize) {
      throw invalid(file, `is truncated: tensor "${name}" ends at byte ${end} and the file has ${fileSize}`);
    }
  }
  if (end !== fileSize) {
    throw invalid(file, `is malformed: ${fileSize - end} bytes follow the last tensor`);
  }
}

function invalid(file: string, problem: string): CheckpointError {
  return new CheckpointError(INVALID, `${file} ${problem}. Download or convert the file again.`);
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isSizes(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((size) => Number.isSafeInteger(size) && size >= 0);
}
