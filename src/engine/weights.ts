/**
 * Where each weight of a model lies on a device: whole files are mapped, and what a device could not read in place
 * because of its alignment is copied into one buffer of its own.
 */
import type { DeviceKind } from "../../ffi/device.ts";
import type { FileEntry } from "../checkpoint/files.ts";
import type { FileRange, WeightTensor } from "../checkpoint/tensor.ts";
import type { Tensor } from "../schedule/tensor.ts";
import type { PlacedWeights } from "../schedule/text.ts";
import { elementBytes, planTensor, scaleBytes } from "../schedule/weight.ts";

/** A range of a file that must be copied. */
export interface WeightCopy extends FileRange {
  /** Bytes from the start of the copy buffer. */
  to: number;
  /** The copy is in f32, with this added to each of its numbers. */
  shift?: { format: PlainKind; addend: number };
}

type PlainKind = "f32" | "bf16" | "f16";

/** The plan's weight buffers: one for each file that is read in place, then the copy buffer if there is one. */
export interface WeightLayout extends PlacedWeights {
  /** Checkpoint file of each mapped buffer. */
  mapped: number[];
  /** What the copy buffer holds. */
  copies: WeightCopy[];
  /** Bytes of the copy buffer; 0: there is none. */
  copiedBytes: number;
  /** Bytes of all weights of the model. */
  weightBytes: number;
  /** Of these, bytes that lie in mapped files. */
  mappedBytes: number;
  /** Of those, bytes in files with blocks of GGUF. A GPU device reads repacked ones instead. */
  blockFileBytes: number;
}

/** Bytes of weights that a device reads in mapped files, apart from those that the CPU device says it replaced. */
export function readInPlace(layout: WeightLayout, kind: DeviceKind): number {
  return layout.mappedBytes - (kind === "cpu" ? 0 : layout.blockFileBytes);
}

const COPY_ALIGNMENT = 256; // bytes; the strictest offset rule of any device

/**
 * Lays out every weight found in `weights`, at any depth. `firstBuffer` is the plan index of the first weight buffer
 * and `alignment` the device's rule for weights in bytes; elements are aligned to their own size in any case.
 */
export function layOutWeights(
  weights: object,
  files: readonly FileEntry[],
  firstBuffer: number,
  alignment: number,
): WeightLayout {
  const all = weightsOf(weights);
  const aligned = (range: FileRange, size: number) => range.offset % Math.max(alignment, size) === 0;
  const parts = all.flatMap((weight) => partsOf(weight));
  const inPlace = parts.filter(({ range, size, shifted }) => !shifted && aligned(range, size));
  const mapped = [...new Set(inPlace.map(({ range }) => range.file))].sort((a, b) => a - b);
  const blockFiles = new Set(
    all.filter(({ format }) => format.kind === "gguf").map(({ parts }) => parts.data.file),
  );
  const copies: WeightCopy[] = [];
  let copiedBytes = 0;
  const place = (
    range: FileRange,
    size: number,
    weight?: WeightTensor,
  ): { buffer: number; offset: number } => {
    const shift = weight && shiftOf(weight);
    if (!shift && aligned(range, size)) {
      return { buffer: firstBuffer + mapped.indexOf(range.file), offset: range.offset };
    }
    const to = Math.ceil(copiedBytes / COPY_ALIGNMENT) * COPY_ALIGNMENT;
    copies.push({ ...range, to, ...shift && { shift } });
    copiedBytes = to + (shift ? range.length / size * 4 : range.length);
    return { buffer: firstBuffer + mapped.length, offset: to };
  };
  const tensors = new Map<WeightTensor, Tensor>();
  for (const weight of all) tensors.set(weight, planTensor(weight, place));
  return {
    buffers: [
      ...mapped.map((file) => ({ name: `weights.${file}`, bytes: files[file].size })),
      ...(copiedBytes > 0 ? [{ name: "weights.copied", bytes: copiedBytes }] : []),
    ],
    mapped,
    copies,
    copiedBytes,
    weightBytes: lengthOf(parts),
    mappedBytes: lengthOf(inPlace),
    blockFileBytes: lengthOf(inPlace.filter(({ range }) => blockFiles.has(range.file))),
    tensor(weight) {
      const tensor = tensors.get(weight);
      if (tensor === undefined) throw new RangeError(`Weight "${weight.name}" is not part of this layout.`);
      return tensor;
    },
  };
}

function lengthOf(parts: readonly Part[]): number {
  return parts.reduce((sum, { range }) => sum + range.length, 0);
}

/** Every weight of a tree of weights once. */
export function weightsOf(tree: object): WeightTensor[] {
  const found = new Set<WeightTensor>();
  const visit = (value: unknown) => {
    if (typeof value !== "object" || value === null) return;
    if ("parts" in value && "format" in value) found.add(value as WeightTensor);
    else Object.values(value).forEach(visit);
  };
  visit(tree);
  return [...found];
}

/** What a copy holds: `bytes` of the file, or their numbers with the addend in f32. */
export function copyOf(bytes: Uint8Array<ArrayBuffer>, { shift }: WeightCopy): Uint8Array<ArrayBuffer> {
  if (shift === undefined) return bytes;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const numbers = Float32Array.from(
    { length: bytes.byteLength / (shift.format === "f32" ? 4 : 2) },
    (_, i) => readNumber(view, shift.format, i) + shift.addend,
  );
  return new Uint8Array(numbers.buffer);
}

function readNumber(view: DataView, format: PlainKind, index: number): number {
  if (format === "f32") return view.getFloat32(4 * index, true);
  if (format === "f16") return view.getFloat16(2 * index, true);
  widened.setUint32(0, view.getUint16(2 * index, true) << 16 >>> 0);
  return widened.getFloat32(0);
}

const widened = new DataView(new ArrayBuffer(4)); // a bf16 is the upper half of an f32

function shiftOf({ addend, format, name }: WeightTensor): WeightCopy["shift"] {
  if (addend === undefined) return undefined;
  if (format.kind === "f32" || format.kind === "bf16" || format.kind === "f16") {
    return { format: format.kind, addend };
  }
  throw new RangeError(`Weight "${name}" has an addend but the format ${format.kind}.`);
}

interface Part {
  range: FileRange;
  /** goes into an f32 copy */ shifted: boolean;
  /** bytes of one element or word */ size: number;
}

function partsOf(weight: WeightTensor): Part[] {
  const { data, scales, biases } = weight.parts;
  const parts = [{ range: data, size: elementBytes(weight), shifted: weight.addend !== undefined }];
  for (const range of [scales, biases]) {
    if (range) parts.push({ range, size: scaleBytes(weight), shifted: false });
  }
  return parts;
}
