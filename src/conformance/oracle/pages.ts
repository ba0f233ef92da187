/**
 * What KV pages hold: numbers, or codes with a scale for each head of a token (`q8`). Of those, 32 tokens of a head are
 * i8 [32, d] and then f32 [32]; a value is scale · code.
 */
import { PAGE_TOKENS, SCALE_BYTES } from "../../schedule/groups.ts";
import type { Limits } from "../../schedule/plan.ts";
import type { Tensor } from "../../schedule/tensor.ts";
import { fromF16, toF16 } from "./numbers.ts";
import { readTensor, sizesOf } from "./weights.ts";

/** What lies beyond the largest half is stored as that, so that keys and values stay finite. */
const MOST_F16 = 65504;

/** A head of a token as codes. */
export interface CodedHead {
  /** f32 */ scale: number;
  /** −127 … 127 */ codes: Int8Array;
}

/** Lanes of a head in a KV tensor. */
export function headDimOf({ format, shape }: Tensor): number {
  return (shape[shape.length - 1] as number) - (format.kind === "i8" ? SCALE_BYTES : 0);
}

/** The codes of a head: its largest value is ±127 · scale, the others are rounded to the nearest code, ties to even. */
export function codesOf(head: Float64Array): CodedHead {
  const largest = head.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  const codes = Int8Array.from(head, (x) => largest === 0 ? 0 : nearestEven(x * 127 / largest));
  return { scale: Math.fround(largest / 127), codes };
}

/** What storing a head in pages of this format makes of it. */
export function storedHead(format: Tensor["format"], head: Float64Array): Float64Array {
  switch (format.kind) {
    case "f16":
      return head.map((x) => fromF16(toF16(Math.max(-MOST_F16, Math.min(MOST_F16, x)))));
    case "i8": {
      const { scale, codes } = codesOf(head);
      return head.map((_, i) => scale * codes[i]);
    }
    default:
      return head;
  }
}

/** All values of a KV tensor, [pages, planes, kvHeads, 32, d]; `buffers` are the plan's, by index. */
export function readPages(tensor: Tensor, buffers: readonly Uint8Array[], limits: Limits): Float64Array {
  if (tensor.format.kind !== "i8") return readTensor(tensor, buffers, limits);
  const d = headDimOf(tensor);
  const values = new Float64Array(sizesOf(tensor, limits).slice(0, -1).reduce((a, b) => a * b, d));
  const view = viewOf(tensor, buffers);
  return values.map((_, i) => view.getInt8(codeByte(i, d)) * view.getFloat32(scaleByte(i, d), true));
}

/** Element `i` of a KV tensor, as `readPages` has it. */
export function readElement(tensor: Tensor, buffers: readonly Uint8Array[], i: number): number {
  const view = viewOf(tensor, buffers);
  switch (tensor.format.kind) {
    case "f16":
      return fromF16(view.getUint16(2 * i, true));
    case "i8": {
      const d = headDimOf(tensor);
      return view.getInt8(codeByte(i, d)) * view.getFloat32(scaleByte(i, d), true);
    }
    default:
      return view.getFloat32(4 * i, true);
  }
}

/** Stores heads as codes at the start of `bytes`; a head whose first value is NaN is left out. values: [heads, d]. */
export function writeCodes(values: Float64Array, d: number, bytes: Uint8Array): void {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 0; at < values.length; at += d) {
    if (Number.isNaN(values[at])) continue;
    const { scale, codes } = codesOf(values.subarray(at, at + d));
    codes.forEach((code, i) => view.setInt8(codeByte(at + i, d), code));
    view.setFloat32(scaleByte(at, d), scale, true);
  }
}

/** Bytes of element `i` of a KV tensor, from the tensor's start: its number, or its code and its head's scale. */
export function elementBytes(tensor: Tensor, i: number): number[] {
  const bytes = (from: number, count: number) => Array.from({ length: count }, (_, n) => from + n);
  if (tensor.format.kind === "f16") return bytes(2 * i, 2);
  if (tensor.format.kind === "f32") return bytes(4 * i, 4);
  const d = headDimOf(tensor);
  return [codeByte(i, d), ...bytes(scaleByte(i, d), SCALE_BYTES)];
}

/** Share of codes that may differ from the reference: those that rounding before has moved across the middle of two. */
const MOVED_SHARE = 0.01;
/** of a scale from the reference's, relative */
const SCALE_ERROR = 1e-5;

/**
 * What is wrong with codes that were written at elements `written`, against the reference's values there; undefined where every scale
 * is right and codes differ by one at most, and few of them.
 */
export function codesFault(
  tensor: Tensor,
  buffers: readonly Uint8Array[],
  written: Uint32Array,
  values: Float64Array,
): string | undefined {
  const d = headDimOf(tensor);
  const view = viewOf(tensor, buffers);
  let moved = 0;
  for (let at = 0; at < written.length; at += d) {
    const head = codesOf(values.subarray(at, at + d));
    const scale = view.getFloat32(scaleByte(written[at], d), true);
    if (!(Math.abs(scale - head.scale) <= SCALE_ERROR * head.scale)) {
      return `the scale of element ${written[at]} is ${scale}, not ${head.scale}`;
    }
    for (let i = 0; i < d; i++) {
      const code = view.getInt8(codeByte(written[at + i], d));
      if (Math.abs(code - head.codes[i]) > 1) {
        return `the code of element ${written[at + i]} is ${code}, not ${head.codes[i]}`;
      }
      if (code !== head.codes[i]) moved++;
    }
  }
  if (moved > 1 + MOVED_SHARE * written.length) return `${moved} of ${written.length} codes are off by one`;
}

function viewOf(tensor: Tensor, buffers: readonly Uint8Array[]): DataView {
  const buffer = buffers[tensor.buffer];
  return new DataView(buffer.buffer, buffer.byteOffset + tensor.offset);
}

/** Where the code of element i of pages [.., 32, d] is. */
function codeByte(i: number, d: number): number {
  return i + Math.floor(i / (PAGE_TOKENS * d)) * PAGE_TOKENS * SCALE_BYTES;
}

/** Where the scale of its head is. */
function scaleByte(i: number, d: number): number {
  const block = Math.floor(i / (PAGE_TOKENS * d));
  const token = Math.floor(i / d) % PAGE_TOKENS;
  return (block + 1) * PAGE_TOKENS * d + (block * PAGE_TOKENS + token) * SCALE_BYTES;
}

function nearestEven(x: number): number {
  const low = Math.floor(x);
  const part = x - low;
  return part > 0.5 || part === 0.5 && low % 2 !== 0 ? low + 1 : low;
}
