/** What a tensor is: its number format, its logical shape, and where its bytes lie. */
import { GGUF_BLOCKS, type GgufType } from "./gguf_types.ts";

/** A run of bytes of one file of a checkpoint. */
export interface FileRange {
  /** Index into `Checkpoint.files`. */
  file: number;
  /** Bytes from the start of the file. */
  offset: number;
  /** Length in bytes. */
  length: number;
}

/**
 * How the numbers of a weight are stored. `affine`: codes of `bits` bits, little-endian bit stream along the last
 * axis, `w = scale * code + bias` with a scale and a bias per `groupSize` columns. `mxfp4` and `mxfp8`: e2m1 and e4m3
 * codes with a power-of-two scale byte per 32 columns. `nvfp4`: e2m1 codes with an e4m3 scale byte per 16 columns.
 * `gguf`: rows of blocks that hold their own scales.
 */
export type Format =
  | { kind: "f32" | "bf16" | "f16" | "mxfp4" | "mxfp8" | "nvfp4" }
  | { kind: "affine"; bits: AffineBits; groupSize: AffineGroupSize }
  | { kind: "gguf"; type: GgufType };

/** Bits per code that affine quantisation knows. */
export type AffineBits = 2 | 3 | 4 | 5 | 6 | 8;

/** Columns that share one scale and one bias. */
export type AffineGroupSize = 32 | 64 | 128;

/** Number type of scales and biases; `u8` are the scale bytes of the fp4 and fp8 formats. */
export type ScaleDtype = "bf16" | "f16" | "f32" | "u8";

/** One weight of the network, where it lies in the files of its checkpoint. Nothing is copied. */
export interface WeightTensor {
  /** Name in the file, for messages. */
  name: string;
  /** Logical shape in elements (not packed words), row-major; matrices are [out, in], experts [expert, out, in]. */
  shape: number[];
  /** How the numbers are stored. */
  format: Format;
  /** `scales` and `biases` are [..., out, in / groupSize], row-major; plain formats have neither. */
  parts: { data: FileRange; scales?: FileRange; biases?: FileRange };
  /** Null for plain formats. */
  scaleDtype: ScaleDtype | null;
  /** Added to each number, in an f32 copy that is made at load; only norms of plain formats have it. */
  addend?: number;
}

/** A table of integers, such as the token order of a drafter. */
export interface IntegerTensor {
  /** Name in the file, for messages. */
  name: string;
  /** Shape in elements, row-major. */
  shape: number[];
  /** Little-endian, signed. */
  dtype: "i64" | "i32";
  /** Where the numbers lie. */
  data: FileRange;
}

/** One tensor as a file declares it, before it has a role. */
export interface RawTensor {
  /** Name in the file. */
  name: string;
  /** The file's own word, such as `BF16` or `U32`. */
  dtype: string;
  /** Stored shape; packed formats count words here. */
  shape: number[];
  /** Where the bytes lie. */
  data: FileRange;
}

/** Columns that share one scale beside the data; null for formats without such scales. */
export function groupSizeOf(format: Format): number | null {
  switch (format.kind) {
    case "affine":
      return format.groupSize;
    case "mxfp4":
    case "mxfp8":
      return 32;
    case "nvfp4":
      return 16;
    default:
      return null;
  }
}

/** Bits that one element takes in the data: without scales and biases that lie beside it; a fraction for blocks. */
export function bitsOf(format: Format): number {
  switch (format.kind) {
    case "affine":
      return format.bits;
    case "f32":
      return 32;
    case "bf16":
    case "f16":
      return 16;
    case "mxfp8":
      return 8;
    case "mxfp4":
    case "nvfp4":
      return 4;
    case "gguf":
      return GGUF_BLOCKS[format.type].bytes * 8 / GGUF_BLOCKS[format.type].elements;
  }
}

/** Short name for tables and messages, such as `bf16`, `affine4/64`, `nvfp4` or `q4_k`. */
export function formatName(format: Format): string {
  if (format.kind === "gguf") return format.type;
  return format.kind === "affine" ? `affine${format.bits}/${format.groupSize}` : format.kind;
}

/** Bytes that the tensor takes in its files: data, scales and biases. */
export function byteLength(tensor: WeightTensor): number {
  const { data, scales, biases } = tensor.parts;
  return data.length + (scales?.length ?? 0) + (biases?.length ?? 0);
}
