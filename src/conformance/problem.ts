/**
 * Builds one-op plans with all their bytes. Everything that no op may touch is poison: guard bands around each
 * tensor, rows beyond the live ones, unused KV slots. A stray read shows as NaN, a stray write as a changed guard.
 */
import type { OutputRow, PageTable, RunInput } from "../engine/input.ts";
import { type KvFormat, SCALE_BYTES } from "../schedule/groups.ts";
import type { Op } from "../schedule/ops.ts";
import { type Limits, type Plan, rowBytes } from "../schedule/plan.ts";
import type { Dim, DimSymbol, Format, Tensor } from "../schedule/tensor.ts";
import { GGUF_BLOCK_ALIGNMENT, type GgufType } from "../checkpoint/gguf_types.ts";
import { fillBlocks, fillScaled } from "./blocks.ts";
import { toBf16, toF16 } from "./oracle/numbers.ts";
import { writeCodes } from "./oracle/pages.ts";
import type { Random } from "./random.ts";

/** Byte of all poison: four make an f32 NaN, two an f16 or bf16 NaN. */
export const POISON = 0xff;
const GUARD_BYTES = 256;

/** Formats that hold one number per element. */
export type PlainKind = "f32" | "f16" | "bf16";

/** How a weight matrix of a case is stored. */
export type WeightFormat =
  | { kind: PlainKind }
  | { kind: "affine"; bits: 2 | 3 | 4 | 5 | 6 | 8; group: 32 | 64 | 128; scales: PlainKind }
  | { kind: "mxfp4" | "mxfp8"; group: 32; scales: "i8" }
  | { kind: "nvfp4"; group: 16; scales: "i8" }
  | { kind: "gguf"; type: GgufType };

/** A plan with the bytes of its buffers and the input of its run. */
export interface Problem {
  plan: Plan;
  /** initial bytes of each buffer; the arena (index 0) is all poison */ buffers: Uint8Array<ArrayBuffer>[];
  input: RunInput;
}

/** One row of a problem's input. */
export interface ProblemRow {
  position: number;
  sequence?: number;
  token?: number;
  rowClass?: "prefill" | "decode";
  soft?: number;
  block?: readonly [number, number];
}

/** A buffer that grows by tensors with guards between. */
class Region {
  bytes: Uint8Array<ArrayBuffer> = new Uint8Array(1 << 16).fill(POISON);
  size = GUARD_BYTES;

  /** `alignment` is met exactly, never by luck of a larger one. */
  reserve(bytes: number, alignment: number): number {
    let offset = Math.ceil(this.size / alignment) * alignment;
    if (offset % (2 * alignment) === 0) offset += alignment;
    this.size = offset + bytes + GUARD_BYTES;
    if (this.size > this.bytes.length) {
      const grown = new Uint8Array(Math.max(this.size, 2 * this.bytes.length)).fill(POISON);
      grown.set(this.bytes);
      this.bytes = grown;
    }
    return offset;
  }

  finish(): Uint8Array<ArrayBuffer> {
    return this.bytes.slice(0, this.size);
  }
}

/** Collects the tensors of one problem. Buffers: arena, inputs, weights, then one per KV tensor. */
export class ProblemBuilder {
  readonly limits: Limits;
  readonly #arena = new Region();
  readonly #inputs = new Region();
  readonly #weights = new Region();
  readonly #pages: Uint8Array<ArrayBuffer>[] = [];
  readonly #outputs: Tensor[] = [];
  readonly #input: RunInput;

  constructor(
    readonly random: Random,
    rows: readonly ProblemRow[],
    options: { outputs?: OutputRow[]; sequences?: PageTable[]; vocabulary?: number } = {},
  ) {
    const { outputs = [{ row: 0 }], sequences, vocabulary = 1000 } = options;
    const count = 1 + rows.reduce((most, row) => Math.max(most, row.sequence ?? 0), 0);
    this.#input = {
      rows: rows.map((row) => ({ token: 0, sequence: 0, rowClass: "prefill", ...row })),
      outputs,
      sequences: sequences ? sequences.map((table) => [table]) : Array.from({ length: count }, () => []),
      groups: sequences ? 1 : 0,
      vocabularySize: vocabulary,
      outputMask: 0,
    };
    const entries = sequences?.reduce((sum, table) => sum + table.pages.length, 0) ?? 0;
    this.limits = {
      rows: rows.length + 3,
      out_rows: outputs.length + 2,
      sequences: count + 1,
      pages: entries + 5,
    };
  }

  /** An activation that the op reads; `values` fill its live rows. */
  activation(name: string, shape: readonly [DimSymbol, number], values: Float64Array): Tensor {
    const bytes = this.limits[shape[0]] * shape[1] * 4;
    const offset = this.#inputs.reserve(bytes, 256);
    store(this.#inputs.bytes, offset, "f32", values);
    return { name, format: { kind: "f32" }, shape, buffer: 1, offset };
  }

  /** An activation that the op writes and the runner checks. */
  output(name: string, shape: readonly [DimSymbol, number], kind: "f32" | "u32" = "f32"): Tensor {
    const offset = this.#arena.reserve(this.limits[shape[0]] * shape[1] * 4, 256);
    const tensor: Tensor = { name, format: { kind }, shape, buffer: 0, offset };
    this.#outputs.push(tensor);
    return tensor;
  }

  /** A plain weight. */
  plain(name: string, shape: readonly number[], kind: PlainKind, values: Float64Array): Tensor {
    const offset = this.#weights.reserve(rowBytes({ kind }, values.length), 16);
    store(this.#weights.bytes, offset, kind, values);
    return { name, format: { kind }, shape, buffer: 2, offset };
  }

  /** A random vector around `mean`: norms, biases, scalars. */
  vector(name: string, length: number, kind: PlainKind = "f32", mean = 0.7, deviation = 0.3): Tensor {
    return this.plain(name, [length], kind, this.random.normals(length, mean, deviation));
  }

  /** A random matrix [n, k] whose products with unit rows are about 1 in size. */
  matrix(name: string, n: number, k: number, format: WeightFormat): Tensor {
    const size = 1 / Math.sqrt(k);
    switch (format.kind) {
      case "f32":
      case "f16":
      case "bf16":
        return this.plain(name, [n, k], format.kind, this.random.normals(n * k, 0, size));
      case "gguf": {
        const offset = this.#weights.reserve(n * rowBytes(format, k), GGUF_BLOCK_ALIGNMENT);
        fillBlocks(format.type, this.#weight(offset, n * rowBytes(format, k)), size, this.random);
        return { name, format, shape: [n, k], buffer: 2, offset };
      }
      case "mxfp4":
      case "mxfp8":
      case "nvfp4": {
        const { kind, group } = format;
        const stored: Format = { kind, group };
        const [bytes, groups] = [n * rowBytes(stored, k), n * k / group];
        const offset = this.#weights.reserve(bytes, 16), scalesAt = this.#weights.reserve(groups, 1);
        fillScaled(kind, this.#weight(offset, bytes), this.#weight(scalesAt, groups), size, this.random);
        const shape = [n, k / group];
        const scales: Tensor = {
          name: `${name}.scales`,
          format: { kind: "i8" },
          shape,
          buffer: 2,
          offset: scalesAt,
        };
        return { name, format: stored, shape: [n, k], buffer: 2, offset, scales };
      }
    }
    const { bits, group } = format;
    const stored: Format = { kind: "affine", bits, group };
    const bytes = rowBytes(stored, k);
    const offset = this.#weights.reserve(n * bytes, 16);
    const codes = this.#weights.bytes.subarray(offset, offset + n * bytes);
    for (let i = 0; i < codes.length; i++) codes[i] = this.random.bits();
    const groups = n * k / group;
    const step = size * Math.sqrt(12) / 2 ** bits;
    const scales = Float64Array.from({ length: groups }, () => step * this.random.uniform(-1.6, 1.6));
    const biases = scales.map((scale) => -scale * (2 ** bits - 1) * this.random.uniform(0.35, 0.65));
    return {
      name,
      format: stored,
      shape: [n, k],
      buffer: 2,
      offset,
      scales: this.plain(`${name}.scales`, [n, k / group], format.scales, scales),
      biases: this.plain(`${name}.biases`, [n, k / group], format.scales, biases),
    };
  }

  #weight(offset: number, bytes: number): Uint8Array {
    return this.#weights.bytes.subarray(offset, offset + bytes);
  }

  /** Random matrices of all experts, [E, n, k]. */
  experts(name: string, E: number, n: number, k: number, format: WeightFormat): Tensor {
    const all = this.matrix(name, E * n, k, format);
    const split = (tensor: Tensor | undefined) =>
      tensor && { ...tensor, shape: [E, n, tensor.shape[1] as number] };
    return { ...split(all)!, scales: split(all.scales), biases: split(all.biases) };
  }

  /** Ids that the op reads, u32. */
  ids(name: string, shape: readonly [Dim, number], values: readonly number[]): Tensor {
    const rows = typeof shape[0] === "number" ? shape[0] : this.limits[shape[0]];
    const offset = this.#inputs.reserve(rows * shape[1] * 4, 256);
    const view = new DataView(this.#inputs.bytes.buffer, offset);
    values.forEach((value, i) => view.setUint32(4 * i, value, true));
    return { name, format: { kind: "u32" }, shape, buffer: 1, offset };
  }

  /** KV pages [pages, planes, kvHeads, 32, d] in a buffer of their own, poison where `values` is NaN. */
  pages(name: string, shape: readonly number[], format: KvFormat, values: Float64Array): Tensor {
    const d = shape[shape.length - 1];
    const kind = format === "q8" ? "i8" : format;
    const columns = format === "q8" ? d + SCALE_BYTES : d;
    const size = values.length / d * rowBytes({ kind }, columns);
    const bytes = new Uint8Array(GUARD_BYTES + size + GUARD_BYTES).fill(POISON);
    if (format === "q8") writeCodes(values, d, bytes.subarray(GUARD_BYTES));
    else store(bytes, GUARD_BYTES, format, values);
    this.#pages.push(bytes);
    return {
      name,
      format: { kind },
      shape: [...shape.slice(0, -1), columns],
      buffer: 2 + this.#pages.length,
      offset: GUARD_BYTES,
    };
  }

  /** The finished problem. */
  finish(op: Op, exact: boolean): Problem {
    const arena = new Uint8Array(this.#arena.size).fill(POISON);
    const buffers = [arena, this.#inputs.finish(), this.#weights.finish(), ...this.#pages];
    const names = ["arena", "inputs", "weights", ...this.#pages.map((_, i) => `kv${i}`)];
    return {
      plan: {
        limits: this.limits,
        buffers: buffers.map((b, i) => ({ name: names[i], bytes: b.length, writable: i !== 1 && i !== 2 })),
        ops: [op],
        outputs: this.#outputs,
        groups: this.#input.groups,
        vocabularySize: this.#input.vocabularySize,
        exact,
        checkFinite: false,
      },
      buffers,
      input: { ...this.#input, outputMask: 2 ** this.#outputs.length - 1 },
    };
  }
}

/** Writes values in a plain format; NaN leaves the poison that is there. */
function store(bytes: Uint8Array, offset: number, kind: PlainKind, values: Float64Array): void {
  const view = new DataView(bytes.buffer, bytes.byteOffset + offset);
  values.forEach((value, i) => {
    if (Number.isNaN(value)) return;
    if (kind === "f32") view.setFloat32(4 * i, value, true);
    else view.setUint16(2 * i, kind === "f16" ? toF16(value) : toBf16(value), true);
  });
}
