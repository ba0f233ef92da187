/** How many kernels an op starts on a GPU. The rules are those of `dylib/gpu/lower_*.cpp`; tests compare the two. */
import type { AttendOp, AttentionOp, ExpertDownOp, ExpertGateUpOp, LinearOp, Op } from "./ops.ts";
import type { GgufType } from "../checkpoint/gguf_types.ts";
import type { RunShape } from "./cost.ts";
import type { Tensor } from "./tensor.ts";

/** Most rows of a decode forward. */
export const DECODE_ROWS = 16;

/** A window up to here is walked by one threadgroup for each head. */
const WALKED_WINDOW = 2048;
/** Full attention of decode rows goes in parts of whole blocks of keys, at most so many. */
const BLOCK_KEYS = 256;
const MOST_PARTS = 64;
/** Contexts of so many blocks or fewer are one dispatch where threadgroups may send each other values. */
const SPREAD_BLOCKS = 8;
/** Bytes that the results of parts may take; rows beyond that take turns. */
const PART_BYTES = 32 * 2 ** 20;

/** Bytes that the products of prompt rows with their experts may take before they are summed; rows beyond that take turns. */
const SUMMAND_BYTES = 64 * 2 ** 20;

/** Slots of decode rows whose ids lanes hold, columns whose norm threads hold, and bytes of threadgroup memory for what is summed. */
const EXPERT_SLOTS = 32;
const HELD_COLUMNS = 3072;
const SUMMED_BYTES = 31 * 2 ** 10;
const BLOCK_CHUNKS = 16; // of a row, read at once

/** Rows whose stream and norm a product on matrix units may make itself, and bytes that these may take of threadgroup memory. */
const OWN_ROWS = 4;
const MOST_HELD_BYTES = 112 * 2 ** 10;
/** Columns of one such row, or of each of several, that its threads hold in registers. */
const ONE_ROW_COLUMNS = 6144;
const OWN_ROWS_COLUMNS = 2560;
const UNIT_SIMDGROUPS = 16; // of such a threadgroup
const MOST_PLACES = 2 ** 24; // of a threadgroup among its spans, which kernels divide as f32
/** Columns of rows of which no threadgroup reads more than so many as they are. */
const LONG_COLUMNS = 4096;
const MOST_LONG_ROWS = 8;

const CHUNK_LOGITS = 8192;
const MERGED_LISTS = 34;
const CANDIDATES_ROWS = 64;

/** Matrix units that take decode rows, as with `matrixUnits` of `load` in fast mode. */
export interface MatrixUnits {
  /** bytes of threadgroup memory that one threadgroup may have */ threadgroupBytes: number;
  /** copies of codes are made there ahead of their use, and some sets have three times as many rows: kernels built as PTX */
  copiesCodes: boolean;
  /** over which sets are dealt out */ cores: number;
}

/**
 * Kernels that one op starts. All rows are of one sequence and of one class, decode up to `DECODE_ROWS` rows. `units`: where
 * decode rows take matrix units. `clusters`: where threadgroups may send each other values, of which attention makes use without
 * `units`.
 */
export function dispatchesOf(op: Op, shape: RunShape, units?: MatrixUnits, clusters = false): number {
  switch (op.kind) {
    case "linear":
      return ofLinear(op, rowsOf(op.y, shape), decodes(shape), units);
    case "attention":
    case "attend":
      return ofAttention(op, rowsOf(op.y, shape), shape, clusters && units === undefined);
    case "candidates": {
      const rounds = Math.ceil(rowsOf(op.ids, shape) / CANDIDATES_ROWS);
      let perRound = 2; // the lists of chunks, and the last of them
      let lists = Math.ceil((op.logits.shape[1] as number) / CHUNK_LOGITS);
      for (; lists > MERGED_LISTS; lists = Math.ceil(lists / MERGED_LISTS)) perRound++;
      return rounds * perRound;
    }
    case "route":
      return (rowsOf(op.y, shape) === 1 ? 1 : 2) + 1; // a linear in f32 for all rows, and the choice
    case "expert_gate_up":
      return decodes(shape) && makesExpertInput(op) ? 1 : ofExperts(op.weights, decodes(shape));
    case "expert_linear":
      return ofExperts([op.weight], decodes(shape));
    case "expert_down":
      if (decodes(shape)) return makesSummedInput(op) ? 1 : 2;
      return 4 * turnsOf(op, rowsOf(op.y, shape));
    case "patch_attention":
      return 2; // heads, and their attention
    case "local_attention":
      return 3; // distances, their keys, and attention
    case "centroid_head":
      return 5; // the norm, the centroids, logits of their tokens, the others, theirs
    default:
      return 1;
  }
}

/** Whether the product of gate and up of decode rows makes its input itself. */
function makesExpertInput({ x, preNorm, experts, weights }: ExpertGateUpOp): boolean {
  const columns = x.shape[1] as number;
  return partsOf(weights) === 1 && (experts.shape[1] as number) <= EXPERT_SLOTS &&
    columns % 4 === 0 && columns <= HELD_COLUMNS && preNorm?.format.kind !== "f32";
}

/** Whether the sum of the products of decode rows has room for the input of all slots. */
function makesSummedInput({ experts, weight }: ExpertDownOp): boolean {
  const slots = experts.shape[1] as number;
  const columns = chunkColumns(weight);
  const blocks = Math.ceil(slots * Math.ceil((weight.shape[2] as number) / columns) / BLOCK_CHUNKS);
  const sums = codesOf(weight).bits > 0 ? BLOCK_CHUNKS : 0;
  return slots <= EXPERT_SLOTS && blocks * (columns * (BLOCK_CHUNKS + 1) + sums) * 4 <= SUMMED_BYTES;
}

/** Products that matrices take, one for each format. */
function partsOf(weights: readonly Tensor[]): number {
  return new Set(weights.map((w) => JSON.stringify([w.format, w.scales?.format]))).size;
}

/** The norm, for prompt rows the order of their experts, and a product for each format, up first. */
function ofExperts(weights: readonly Tensor[], decode: boolean): number {
  const parts = partsOf(weights);
  if (!decode) return 2 + parts;
  return parts + (parts === 1 ? 1 : new Set(weights.map(lanesInput)).size);
}

/** Times that prompt rows go through the norm, the order, the products and their sum. */
function turnsOf({ experts, weight }: ExpertDownOp, rows: number): number {
  const rowBytes = (experts.shape[1] as number) * (weight.shape[1] as number) * 4;
  return Math.ceil(rows / Math.max(Math.floor(SUMMAND_BYTES / rowBytes), 1));
}

function decodes({ rows }: RunShape): boolean {
  return rows <= DECODE_ROWS;
}

function rowsOf(tensor: Tensor, shape: RunShape): number {
  return tensor.shape[0] === "out_rows" ? shape.outRows : shape.rows;
}

/** One product for each run of matrices of one format; before them, where they do not make it themselves, the stream and its norm. */
function ofLinear(op: LinearOp, rows: number, decode: boolean, units: MatrixUnits | undefined): number {
  let { weights } = op;
  if (finishesLater(op)) return 3; // as prompt rows, and y of the products
  const formats = weights.map((w) => JSON.stringify([w.format, w.scales?.format]));
  if (op.epilogue.kind === "geglu") weights = [weights[1], weights[0]]; // two products: up first
  const parts: Tensor[][] = [];
  weights.forEach((w, i) =>
    i === 0 || formats[i] !== formats[i - 1] ? parts.push([w]) : parts.at(-1)!.push(w)
  );
  if (!decode) return 1 + parts.length;
  let prologues = 0;
  let lastInput = "", unitsInput = ""; // what the parts before can share
  for (const part of parts) {
    const [w] = part;
    const { bits } = codesOf(w);
    if (units !== undefined && onMatrixUnits(w)) {
      if (takesRowsAsTheyAre(op, rows)) continue;
      const input = `${bits}/${spanColumns(w)}`;
      const gated = op.epilogue.kind === "geglu" && part.length === 2;
      const holds = inRegisters(op, rows) && holdsRows(w, rows, eightsOfSet(part, gated, units), units);
      if (holds || input === unitsInput) continue;
      unitsInput = input;
      prologues++;
    } else if (rows > 1) {
      const input = lanesInput(w);
      if (input === lastInput) continue;
      lastInput = input;
      prologues++;
    }
  }
  return parts.length + prologues;
}

/** Whether bounds or an activation are applied to all products in a dispatch of their own; no such op takes decode kernels. */
function finishesLater({ epilogue, clip }: LinearOp): boolean {
  return clip !== undefined || epilogue.kind === "silu";
}

/** Whether decode rows are multiplied on matrix units where the device has them and was told to. */
export function takesMatrixUnits(op: Op): boolean {
  return op.kind === "linear" && !finishesLater(op) && op.weights.some(onMatrixUnits);
}

/** Whether a format has kernels on matrix units. */
function onMatrixUnits({ format }: Tensor): boolean {
  if (format.kind === "affine") return format.group >= 64 || format.bits === 4 || format.bits === 8;
  return format.kind === "gguf" && ["q4_0", "q4_k", "q8_0"].includes(format.type);
}

/** Columns that matrix units take under one scale. */
function spanColumns(tensor: Tensor): number {
  return codesOf(tensor).group === 32 ? 32 : 64;
}

/** Whether a product reads x itself: it has no norm or residual, and threadgroups do not read too much of it. */
function takesRowsAsTheyAre(op: LinearOp, rows: number): boolean {
  if (rows > MOST_LONG_ROWS && (op.x.shape[1] as number) > LONG_COLUMNS) return false;
  return !op.residual && !op.postNorm && !op.scalar && !op.preNorm && !op.hOut;
}

/** Times 8 matrix rows of a set: three where that leaves no core with a tenth more to do, and codes are copied. */
function eightsOfSet(part: readonly Tensor[], gated: boolean, { copiesCodes, cores }: MatrixUnits): 1 | 3 {
  const spans = Math.ceil((part[0].shape[1] as number) / spanColumns(part[0]));
  const mostOf = (eights: number) => {
    const rowsOfSet = (gated ? 4 : 8) * eights;
    const matrices = gated ? [part[0]] : part;
    const sets = matrices.reduce((sum, { shape }) => sum + Math.ceil((shape[0] as number) / rowsOfSet), 0);
    const fewest = Math.ceil(UNIT_SIMDGROUPS * sets / (Math.floor(MOST_PLACES / spans) - UNIT_SIMDGROUPS));
    return Math.ceil(sets / Math.min(sets, Math.max(cores, fewest))) * eights;
  };
  return copiesCodes && mostOf(3) <= 1.1 * mostOf(1) ? 3 : 1;
}

/** Whether the threads of a product hold all that makes its input in registers. */
function inRegisters({ x, postNorm, preNorm }: LinearOp, rows: number): boolean {
  const columns = x.shape[1] as number;
  const in16Bits = [postNorm, preNorm].every((norm) => norm?.format.kind !== "f32");
  return in16Bits && columns % 4 === 0 && columns <= (rows === 1 ? ONE_ROW_COLUMNS : OWN_ROWS_COLUMNS);
}

/** Whether threadgroups hold the input of all rows beside what else they hold, so that the product makes it itself. */
function holdsRows(
  weight: Tensor,
  rows: number,
  eights: number,
  { threadgroupBytes, copiesCodes }: MatrixUnits,
): boolean {
  if (rows > OWN_ROWS) return false;
  const held = rows === 1 ? 1 : OWN_ROWS;
  const columns = weight.shape[1] as number, span = spanColumns(weight);
  const bytes = Math.ceil(columns / span) * (span * 4 + 8) * held;
  const perRow = copiesCodes ? span * codesOf(weight).bits + 4 * held : 8 * held;
  const own = UNIT_SIMDGROUPS * (eights * 8 * perRow + (copiesCodes ? 0 : 512) + 8 * held) + 64;
  return Math.ceil(bytes / 16) * 16 + own <= threadgroupBytes && (rows === 1 || bytes <= MOST_HELD_BYTES);
}

/** Bits and columns of a scale of blocks as kernels read them. */
const BLOCK_CODES: Readonly<Record<GgufType, [bits: number, group: number]>> = {
  q4_0: [4, 32],
  q4_1: [4, 32],
  q5_0: [5, 32],
  q5_1: [5, 32],
  q8_0: [8, 32],
  q2_k: [2, 16],
  q3_k: [3, 16],
  q4_k: [4, 32],
  q5_k: [5, 32],
  q6_k: [6, 16],
  iq4_nl: [4, 32],
  iq4_xs: [4, 32],
};

/** Codes of a weight as kernels read them; 0 bits: a plain format. `book`: they stand for the numbers of a book. */
function codesOf({ format }: Tensor): { bits: number; group: number; book: boolean } {
  switch (format.kind) {
    case "affine":
      return { bits: format.bits, group: format.group, book: false };
    case "gguf": {
      const [bits, group] = BLOCK_CODES[format.type];
      return { bits, group, book: format.type.startsWith("iq4") };
    }
    case "mxfp4":
    case "mxfp8":
    case "nvfp4":
      return { bits: format.kind === "mxfp8" ? 8 : 4, group: format.group, book: true };
    default:
      return { bits: 0, group: 0, book: false };
  }
}

/** How lanes want their input: products whose words are alike share it. */
function lanesInput(tensor: Tensor): string {
  const { bits, book } = codesOf(tensor);
  return `${chunkColumns(tensor)}/${book ? 0 : bits}`;
}

/** Columns that a lane takes at once. */
function chunkColumns(tensor: Tensor): number {
  const { bits, group } = codesOf(tensor);
  if (bits > 0) return bits === 8 || group === 16 ? 16 : 32;
  return tensor.format.kind === "f32" ? 4 : 8;
}

function ofAttention(op: AttentionOp | AttendOp, rows: number, shape: RunShape, spreads: boolean): number {
  const owns = op.kind === "attention" && op.ownsKv;
  if (!decodes(shape)) return owns ? 2 : 1;
  const written = owns && shape.rows > 1 ? 1 : 0; // so that rows of one sequence see each other
  if (op.window !== null && op.window <= WALKED_WINDOW) return written + 1;
  const blocks = Math.ceil((shape.context + shape.rows) / BLOCK_KEYS);
  if (spreads && blocks <= SPREAD_BLOCKS) return written + 1;
  const bytes = op.heads * Math.min(Math.max(blocks, 1), MOST_PARTS) * (op.headDim + 2) * 4;
  const turn = Math.max(Math.floor(PART_BYTES / bytes), 1);
  return written + 2 * Math.ceil(rows / turn); // parts, and their sum
}
