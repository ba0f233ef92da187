/**
 * Where each weight of a model lies on a device: whole files are mapped, and what a device could not read in place
 * because of its alignment is copied into one buffer of its own.
 */
import type { FileEntry } from "../checkpoint/files.ts";
import type { FileRange, WeightTensor } from "../checkpoint/tensor.ts";
import type { Tensor } from "../schedule/tensor.ts";
import type { PlacedWeights } from "../schedule/text.ts";
import { elementBytes, planTensor, scaleBytes } from "../schedule/weight.ts";

/** A range of a file that must be copied. */
export interface WeightCopy extends FileRange {
  /** Bytes from the start of the copy buffer. */
  to: number;
}

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
  const inPlace = (range: FileRange, size: number) => range.offset % Math.max(alignment, size) === 0;
  const parts = all.flatMap((weight) => partsOf(weight));
  const mapped = [...new Set(parts.filter((p) => inPlace(p.range, p.size)).map((p) => p.range.file))].sort((
    a,
    b,
  ) => a - b);
  const copies: WeightCopy[] = [];
  let copiedBytes = 0;
  const place = (range: FileRange, size: number): { buffer: number; offset: number } => {
    if (inPlace(range, size)) {
      return { buffer: firstBuffer + mapped.indexOf(range.file), offset: range.offset };
    }
    const to = Math.ceil(copiedBytes / COPY_ALIGNMENT) * COPY_ALIGNMENT;
    copies.push({ ...range, to });
    copiedBytes = to + range.length;
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
    weightBytes: parts.reduce((sum, part) => sum + part.range.length, 0),
    tensor(weight) {
      const tensor = tensors.get(weight);
      if (tensor === undefined) throw new RangeError(`Weight "${weight.name}" is not part of this layout.`);
      return tensor;
    },
  };
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

interface Part {
  range: FileRange;
  /** bytes of one element or word */ size: number;
}

function partsOf(weight: WeightTensor): Part[] {
  const { data, scales, biases } = weight.parts;
  const parts = [{ range: data, size: elementBytes(weight) }];
  for (const range of [scales, biases]) if (range) parts.push({ range, size: scaleBytes(weight) });
  return parts;
}
