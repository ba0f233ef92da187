/**
 * A plan: buffers, tensors and ops in order, plus the outputs of a run. `PlanBuilder` collects them,
 * `layOut` gives activations their place in one arena, `encodePlan` writes the bytes of `dylib/plan.h`.
 */
import { GGUF_BLOCKS } from "../checkpoint/gguf_types.ts";
import type { Op } from "./ops.ts";
import type { Dim, DimSymbol, Format, Tensor } from "./tensor.ts";
import { operandsOf } from "./operands.ts";

/** The most that each symbol of a plan can be in one run. */
export interface Limits {
  /** rows (tokens) of one forward */ rows: number;
  /** rows that produce output */ out_rows: number;
  /** sequences in one forward */ sequences: number;
  /** page table entries of all groups and sequences */ pages: number;
}

/** A buffer that a plan needs; the engine binds a device buffer to each. */
export interface PlanBuffer {
  name: string;
  /** bytes needed at least */ bytes: number;
  writable: boolean;
}

/** A complete plan, independent of any device. */
export interface Plan {
  limits: Limits;
  buffers: PlanBuffer[];
  ops: Op[];
  /** what a run can copy out, selected by bit in the input block */ outputs: Tensor[];
  /** KV page groups */ groups: number;
  vocabularySize: number;
  exact: boolean;
  checkFinite: boolean;
  /** a CPU reads the weights where they lie: a copy in another layout would serve too few runs */ inPlace?:
    boolean;
}

/** Bytes of one element run: exact for plain formats, of a packed row for quantised weights. */
export function rowBytes(format: Format, columns: number): number {
  switch (format.kind) {
    case "f32":
    case "u32":
      return columns * 4;
    case "f16":
    case "bf16":
      return columns * 2;
    case "i8":
      return columns;
    case "affine":
      return Math.ceil(columns * format.bits / 32) * 4;
    case "mxfp4":
    case "nvfp4":
      return columns / 2;
    case "mxfp8":
      return columns;
    case "gguf":
      return columns / GGUF_BLOCKS[format.type].elements * GGUF_BLOCKS[format.type].bytes;
  }
}

/** Bytes of a tensor with every symbol at its maximum. */
export function tensorBytes(tensor: Tensor, limits: Limits): number {
  const sizes = tensor.shape.map((d) => typeof d === "number" ? d : limits[d]);
  const rows = sizes.slice(0, -1).reduce((product, size) => product * size, 1);
  return rows * rowBytes(tensor.format, sizes[sizes.length - 1]);
}

const ARENA_ALIGNMENT = 256; // bytes; a cache line on every CPU and the strictest offset rule of the GPU devices

/** Collects the parts of a plan. The first buffer is the arena that holds all activations. */
export class PlanBuilder {
  readonly buffers: PlanBuffer[] = [{ name: "arena", bytes: 0, writable: true }];
  readonly ops: Op[] = [];
  readonly outputs: Tensor[] = [];

  constructor(readonly limits: Limits) {}

  /** Adds a buffer and returns its index. */
  buffer(name: string, bytes: number, writable: boolean): number {
    this.buffers.push({ name, bytes, writable });
    return this.buffers.length - 1;
  }

  /** A new activation in the arena, f32 unless said otherwise. */
  activation(name: string, shape: readonly Dim[], format: Format = { kind: "f32" }): Tensor {
    return { name, format, shape, buffer: 0, offset: -1 };
  }

  /** Appends an op and returns it. */
  add<T extends Op>(op: T): T {
    this.ops.push(op);
    return op;
  }

  /** Marks a tensor as readable after a run; its index is the bit in the output mask. */
  output(tensor: Tensor): number {
    this.outputs.push(tensor);
    return this.outputs.length - 1;
  }

  /** Places the activations and returns the finished plan. */
  finish(
    options: {
      groups: number;
      vocabularySize: number;
      exact: boolean;
      checkFinite?: boolean;
      inPlace?: boolean;
      /** false: every activation keeps its own place (tests compare both) */ reuse?: boolean;
      /** nothing else is ever where outputs are, so that those of a run stay until the next makes its own */ outputsApart?:
        boolean;
    },
  ): Plan {
    this.buffers[0].bytes = layOut(this.ops, this.outputs, this.limits, options);
    return {
      limits: this.limits,
      buffers: this.buffers,
      ops: this.ops,
      outputs: this.outputs,
      groups: options.groups,
      vocabularySize: options.vocabularySize,
      exact: options.exact,
      checkFinite: options.checkFinite ?? false,
      inPlace: options.inPlace ?? false,
    };
  }
}

/**
 * Gives each activation an offset in the arena such that tensors alive at the same time never share a byte.
 * A tensor lives from the op that writes it to the last op that reads it; outputs live to the end, and those apart from the
 * beginning.
 * Returns the arena's size in bytes.
 */
function layOut(
  ops: readonly Op[],
  outputs: readonly Tensor[],
  limits: Limits,
  { reuse = true, outputsApart = false }: { reuse?: boolean; outputsApart?: boolean },
): number {
  const lives = new Map<Tensor, { first: number; last: number }>();
  ops.forEach((op, index) => {
    for (const tensor of operandsOf(op)) {
      if (tensor === undefined || tensor.buffer !== 0) continue;
      const life = lives.get(tensor);
      if (life) life.last = index;
      else lives.set(tensor, { first: index, last: index });
    }
  });
  for (const tensor of outputs) {
    const life = lives.get(tensor);
    if (life) life.last = ops.length;
    if (life && outputsApart) life.first = 0;
  }
  const inOrder = [...lives].sort(([, a], [, b]) => a.first - b.first);
  const placed: { start: number; end: number; last: number }[] = [];
  let size = ARENA_ALIGNMENT;
  for (const [tensor, life] of inOrder) {
    const bytes = Math.ceil(tensorBytes(tensor, limits) / ARENA_ALIGNMENT) * ARENA_ALIGNMENT;
    let start = 0;
    const busy = placed.filter((p) => !reuse || p.last >= life.first).sort((a, b) => a.start - b.start);
    for (const other of busy) {
      if (start + bytes <= other.start) break;
      start = Math.max(start, other.end);
    }
    tensor.offset = start;
    placed.push({ start, end: start + bytes, last: life.last });
    size = Math.max(size, start + bytes);
  }
  return size;
}

const NONE = 0xffffffff;
const HEADER_BYTES = 48;
const SYMBOL_BYTES = 8;
const BUFFER_BYTES = 16;
const TENSOR_BYTES = 80;
const OP_BYTES = 160;
const OUTPUT_BYTES = 8;
const MAX_OPERANDS = 20;

const SYMBOLS: readonly DimSymbol[] = ["rows", "out_rows", "sequences", "pages"];
const FORMAT_CODES: Record<Format["kind"], number> = {
  f32: 0,
  f16: 1,
  bf16: 2,
  u32: 3,
  i8: 4,
  affine: 16,
  mxfp4: 17,
  mxfp8: 18,
  nvfp4: 19,
  gguf: 32, // plus the type number of the file format
};
function formatCode(format: Format): number {
  return FORMAT_CODES[format.kind] + (format.kind === "gguf" ? GGUF_BLOCKS[format.type].number : 0);
}

/** Op kinds as numbers of `dylib/plan.h`. */
export const OP_CODES: Record<Op["kind"], number> = {
  embed: 1,
  per_layer_inputs: 2,
  linear: 3,
  attention: 4,
  gather: 5,
  candidates: 6,
  route: 7,
  expert_gate_up: 8,
  expert_down: 9,
  add_norms: 10,
  draft_input: 11,
  centroid_head: 12,
  add_positions: 13,
  patch_attention: 14,
  pool: 15,
  subsample: 16,
  local_attention: 17,
  light_conv: 18,
  layer_norm: 19,
  rms_norm: 32,
  add: 33,
  gelu_mul: 34,
  softcap: 35,
  rope: 36,
  kv_write: 37,
  attend: 38,
  top_k: 39,
  expert_linear: 40,
  expert_sum: 41,
};
const EPILOGUE_CODES = { none: 0, geglu: 1, gelu_mul: 2, softcap: 3, silu: 4 } as const;
const BLOCK_FLAGS = { causal: 0, window: 8, whole: 16 } as const;
const CLIP_FLAG = 1;

/** The bytes that `mb_pass_compile` takes. */
export function encodePlan(plan: Plan): Uint8Array<ArrayBuffer> {
  const tensors = new Map<Tensor, number>();
  const collect = (tensor: Tensor | undefined) => {
    if (tensor === undefined || tensors.has(tensor)) return;
    collect(tensor.scales);
    collect(tensor.biases);
    tensors.set(tensor, tensors.size);
  };
  for (const op of plan.ops) operandsOf(op).forEach(collect);
  plan.outputs.forEach(collect);

  const bytes = new Uint8Array(
    HEADER_BYTES + SYMBOLS.length * SYMBOL_BYTES + plan.buffers.length * BUFFER_BYTES +
      tensors.size * TENSOR_BYTES + plan.ops.length * OP_BYTES + plan.outputs.length * OUTPUT_BYTES,
  );
  const view = new DataView(bytes.buffer);
  let at = 0;
  const u32 = (value: number) => (view.setUint32(at, value, true), at += 4);
  const f32 = (value: number) => (view.setFloat32(at, value, true), at += 4);
  const i64 = (value: number) => (view.setBigInt64(at, BigInt(value), true), at += 8);
  const index = (tensor: Tensor | undefined) => tensor === undefined ? NONE : tensors.get(tensor)!;

  u32(0x4c50424d);
  u32(1);
  u32((plan.exact ? 1 : 0) | (plan.checkFinite ? 2 : 0) | (plan.inPlace ? 4 : 0));
  u32(plan.buffers.length);
  u32(tensors.size);
  u32(plan.ops.length);
  u32(plan.outputs.length);
  u32(plan.groups);
  u32(plan.vocabularySize);
  at = HEADER_BYTES;
  for (const symbol of SYMBOLS) i64(plan.limits[symbol]);
  for (const buffer of plan.buffers) {
    i64(buffer.bytes);
    u32(buffer.writable ? 1 : 0);
    u32(0);
  }
  for (const tensor of tensors.keys()) {
    const { format, shape } = tensor;
    u32(formatCode(format));
    u32(tensor.buffer);
    i64(tensor.offset);
    u32(shape.length);
    u32(format.kind === "affine" ? format.bits : 0);
    u32("group" in format ? format.group : 0);
    u32(index(tensor.scales));
    u32(index(tensor.biases));
    u32(0);
    for (let i = 0; i < 5; i++) {
      const dim = shape[i] ?? 0;
      i64(typeof dim === "number" ? dim : -1 - SYMBOLS.indexOf(dim));
    }
  }
  for (const op of plan.ops) {
    const start = at;
    const { flags, ints, floats } = parameters(op);
    u32(OP_CODES[op.kind]);
    u32(flags);
    u32(op.layer ?? NONE);
    u32(0);
    const operands = operandsOf(op);
    for (let i = 0; i < MAX_OPERANDS; i++) u32(index(operands[i]));
    for (let i = 0; i < 8; i++) u32(ints[i] ?? 0);
    for (let i = 0; i < 8; i++) f32(floats[i] ?? 0);
    at = start + OP_BYTES;
  }
  for (const tensor of plan.outputs) {
    u32(index(tensor));
    u32(0);
  }
  return bytes;
}

/** The int, float and flag slots of an op, in the order of `dylib/plan.h`. */
function parameters(op: Op): { flags: number; ints: number[]; floats: number[] } {
  switch (op.kind) {
    case "embed":
      return { flags: 0, ints: [], floats: [op.scale] };
    case "per_layer_inputs":
      return {
        flags: 0,
        ints: [op.slice],
        floats: [op.eps, op.projectionScale, op.tableScale, op.outScale],
      };
    case "linear":
      return {
        flags: op.clip ? CLIP_FLAG : 0,
        ints: [
          EPILOGUE_CODES[op.epilogue.kind],
          op.epilogue.kind === "gelu_mul" ? op.epilogue.column : 0,
        ],
        floats: [
          op.eps,
          op.epilogue.kind === "softcap" ? op.epilogue.cap : 0,
          ...(op.clip ? [...op.clip.input, ...op.clip.output] : []),
        ],
      };
    case "attention":
      return {
        flags: (op.ownsKv ? 1 : 0) | (op.keysAreValues ? 2 : 0) | (op.normValues ? 4 : 0) |
          BLOCK_FLAGS[op.block ?? "causal"],
        ints: [
          op.heads,
          op.kvHeads,
          op.headDim,
          op.rope.rotatedPairs,
          op.kv.layer,
          op.kv.group,
          op.window ?? 0,
        ],
        floats: [
          op.rope.theta,
          op.eps,
          op.scoreScale,
          op.rope.positionScale,
          op.rope.positionOffset ?? 0,
        ],
      };
    case "route":
      return { flags: 0, ints: [], floats: [op.eps, op.inScale] };
    case "expert_gate_up":
    case "add_norms":
      return { flags: 0, ints: [], floats: [op.eps] };
    case "draft_input":
      return { flags: 0, ints: [], floats: [op.scale] };
    case "centroid_head":
      return { flags: 0, ints: [op.topK], floats: [op.eps] };
    case "expert_linear":
      return { flags: 0, ints: [op.firstRow], floats: [] };
    case "expert_down":
    case "expert_sum":
    case "top_k":
    case "gather":
    case "candidates":
      return { flags: 0, ints: [], floats: [] };
    case "rms_norm":
      return { flags: 0, ints: [op.group], floats: [op.eps, op.inScale] };
    case "add":
      return { flags: 0, ints: [], floats: [op.aScale, op.bScale] };
    case "gelu_mul":
      return { flags: 0, ints: [op.column], floats: [] };
    case "softcap":
      return { flags: 0, ints: [], floats: [op.cap] };
    case "rope":
      return {
        flags: 0,
        ints: [op.heads, op.headDim, op.rope.rotatedPairs],
        floats: [op.rope.theta, op.rope.positionScale, op.rope.positionOffset ?? 0],
      };
    case "kv_write":
      return { flags: 0, ints: [op.kvHeads, op.headDim, op.kv.layer, op.kv.group], floats: [] };
    case "attend":
      return {
        flags: BLOCK_FLAGS[op.block ?? "causal"],
        ints: [op.heads, op.kvHeads, op.headDim, op.kv.layer, op.kv.group, op.window ?? 0],
        floats: [op.scoreScale],
      };
    case "add_positions":
      return { flags: 0, ints: [op.count, op.step, op.second], floats: [] };
    case "patch_attention":
      return {
        flags: 0,
        ints: [op.heads, op.kvHeads, op.headDim],
        floats: [op.theta, op.eps, op.scoreScale],
      };
    case "pool":
      return { flags: 0, ints: [], floats: [op.factor] };
    case "subsample":
      return { flags: op.channelsLast ? 1 : 0, ints: [op.bins, op.framesPerRow], floats: [op.eps] };
    case "local_attention":
      return {
        flags: 0,
        ints: [op.heads, op.headDim, op.left, op.right],
        floats: [op.shift, op.qScale, op.kScale, op.cap],
      };
    case "light_conv":
    case "layer_norm":
      return { flags: 0, ints: [], floats: [op.eps] };
  }
}
