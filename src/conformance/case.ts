/** One line of the conformance table. */
import { GGUF_BLOCKS, type GgufType } from "../checkpoint/gguf_types.ts";
import type { Op } from "../schedule/ops.ts";
import type { Problem, WeightFormat } from "./problem.ts";

/** What a case allows: norm of the difference over norm of the reference. */
export interface Tolerance {
  /** f32 arithmetic */ exact: number;
  /** the device's fast mode */ fast: number;
}

/** Outputs in f32 from f32 arithmetic. */
export const F32: Tolerance = { exact: 1e-5, fast: 1e-5 };
/** Matrix products: fast mode may round activations to eight bits. */
export const PRODUCT: Tolerance = { exact: 1e-5, fast: 1e-2 };
/** Values that pass through half storage. */
export const HALF: Tolerance = { exact: 4e-3, fast: 4e-3 };
/** f32 storage, where fast mode may take half operands. */
export const HALF_IF_FAST: Tolerance = { exact: 1e-5, fast: 4e-3 };

/** An op on particular shapes, formats and data. */
export interface Case {
  op: Op["kind"];
  /** what sets it apart within the op, unique there */
  name: string;
  tolerance: Tolerance;
  /** the same bytes at each call; `exact` is the plan's precision */
  build(exact: boolean): Problem;
}

/** A case of the table, with what is needed to choose among them. */
export interface TableCase extends Case {
  /** which variants of ops it is about (src/schedule/variants.ts) */ variants: readonly string[];
  /** multiplications of its reference, about */ work: number;
  /** GPU devices have no kernel for it and refuse it as unsupported */ cpuOnly?: boolean;
  /** about the CPU device's interleaved rows; GPU devices have the same kernels in other cases */ interleaved?:
    boolean;
}

/** Whether a device of that kind runs the case. */
export function runsOn(kind: string, { cpuOnly, interleaved }: TableCase): boolean {
  return kind === "cpu" || !(cpuOnly || interleaved);
}

/** A seed from a name, so that a case keeps its data when others come and go. */
export function seedOf(name: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  return hash >>> 0;
}

/** Short name of a weight format, such as `affine4/64+bf16`. */
export function formatName(format: WeightFormat): string {
  if (format.kind === "gguf") return format.type;
  return format.kind === "affine" ? `affine${format.bits}/${format.group}+${format.scales}` : format.kind;
}

/** Every storage format of weights. */
export const FORMATS: readonly WeightFormat[] = [
  { kind: "f32" },
  { kind: "bf16" },
  { kind: "f16" },
  ...([2, 3, 4, 5, 6, 8] as const).flatMap((bits) => [
    ...([32, 64, 128] as const).map((group) => ({ kind: "affine", bits, group, scales: "bf16" }) as const),
    { kind: "affine", bits, group: 64, scales: "f16" } as const,
    { kind: "affine", bits, group: 32, scales: "f32" } as const,
  ]),
];

/** Formats that hold their own scales or scale bytes; columns must be a multiple of 256. */
export const BLOCK_FORMATS: readonly WeightFormat[] = [
  { kind: "mxfp4", group: 32, scales: "i8" },
  { kind: "mxfp8", group: 32, scales: "i8" },
  { kind: "nvfp4", group: 16, scales: "i8" },
  ...(Object.keys(GGUF_BLOCKS) as GgufType[]).map((type) => ({ kind: "gguf", type }) as const),
];

/** Columns that a row of the format is a multiple of. */
export function blockColumns(format: WeightFormat): number {
  return format.kind === "gguf" ? GGUF_BLOCKS[format.type].elements : "group" in format ? format.group : 1;
}

/** The affine format most used, the widest, and the plain ones. */
export const MAIN_FORMATS: readonly WeightFormat[] = [
  { kind: "f32" },
  { kind: "bf16" },
  { kind: "f16" },
  { kind: "affine", bits: 4, group: 64, scales: "bf16" },
  { kind: "affine", bits: 8, group: 32, scales: "bf16" },
];
