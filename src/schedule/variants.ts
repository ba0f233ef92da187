/**
 * The variants of ops that devices may have kernels of their own for, as short texts: by storage format, row class and number of
 * rows, head size, page format, and by the parts of a fused op. The self-check runs a case of each variant that a model needs.
 */
import type { KvLayer, Op } from "./ops.ts";
import type { Tensor } from "./tensor.ts";

/** How a weight is stored. */
export interface StoredFormat {
  /** of its elements */ kind: string;
  /** of a block of GGUF */ type?: string;
  /** of one code */ bits?: number;
  /** columns that share a scale */ group?: number;
  /** format of the scales */ scales?: string;
}

/** Rows of a run, as far as kernels are chosen by them. */
export type RowKind = "1 row" | "2 rows" | "4 rows" | "16 rows" | "short prompt" | "prompt";

/** Every kind. */
const ROW_KINDS: readonly RowKind[] = [
  "1 row",
  "2 rows",
  "4 rows",
  "16 rows",
  "short prompt",
  "prompt",
];

const PROMPT_KINDS = ROW_KINDS.filter((kind) => pathOf(kind) === "prompt");

/** The kinds of a run with so many decode rows and prefill rows. */
export function rowKinds(decode: number, prefill: number): RowKind[] {
  const kinds: RowKind[] = [];
  if (decode > 0) {
    kinds.push(decode === 1 ? "1 row" : decode === 2 ? "2 rows" : decode <= 4 ? "4 rows" : "16 rows");
  }
  if (prefill > 0) kinds.push(prefill <= 16 ? "short prompt" : "prompt");
  return kinds;
}

/** The three ways in which an op may go about its rows. */
function pathOf(kind: RowKind): "row" | "rows" | "prompt" {
  return kind === "1 row" ? "row" : kind.endsWith("prompt") ? "prompt" : "rows";
}

/** Variants of an op that reads rows of a table. */
export function tableVariants(
  op: "embed" | "per_layer_inputs" | "draft_input" | "centroid_head",
  format: StoredFormat,
): string[] {
  return formatWords(format).map((word) => `${op} ${word}`);
}

/** An `embed` that takes soft tokens. */
export const SOFT_TOKENS = "embed soft tokens";

/** Parts of a `linear`. */
export interface LinearParts {
  formats: readonly StoredFormat[];
  epilogue: "none" | "geglu" | "gelu_mul" | "softcap" | "silu";
  residual?: unknown;
  postNorm?: unknown;
  scalar?: unknown;
  hOut?: unknown;
  preNorm?: unknown;
  biases?: readonly unknown[];
  clip?: unknown;
}

/** Variants of a `linear` on rows of these kinds. */
export function linearVariants(op: LinearParts, kinds: readonly RowKind[]): string[] {
  const parts = (["residual", "postNorm", "scalar", "hOut", "preNorm"] as const).filter((part) => op[part]);
  const words: string[] = [...parts];
  if (op.epilogue !== "none") words.push(op.epilogue);
  if (op.biases?.some((bias) => bias)) words.push("bias");
  if (op.clip) words.push("clip");
  if (op.epilogue !== "geglu" && op.formats.length > 1) words.push("several matrices");
  if (new Set(op.formats.map((format) => JSON.stringify(format))).size > 1) words.push("mixed formats");
  const variants: string[] = [];
  for (const kind of kinds) {
    for (const format of op.formats) {
      const [kernel, layout] = formatWords(format);
      variants.push(`linear ${kernel}, ${kind}`);
      if (layout) variants.push(`linear ${layout}, ${pathOf(kind)}`);
    }
    for (const word of words) variants.push(`linear ${word}, ${pathOf(kind)}`);
  }
  return variants;
}

/** Variants of an op on the weights of chosen experts, and how gate and up are stored. */
export function expertVariants(
  op: "expert_gate_up" | "expert_down" | "expert_linear",
  formats: readonly StoredFormat[],
  kinds: readonly RowKind[],
): string[] {
  const variants: string[] = [];
  if (op === "expert_gate_up") variants.push(`${op} ${formats.length === 1 ? "fused" : "split"}`);
  for (const kind of kinds) {
    for (const format of formats) {
      const [kernel, layout] = formatWords(format);
      variants.push(`${op} ${kernel}, ${kind}`);
      if (layout) variants.push(`${op} ${layout}, ${pathOf(kind)}`);
    }
  }
  return variants;
}

/** Variants of `route`. */
export function routeVariants(format: StoredFormat, kinds: readonly RowKind[]): string[] {
  return kinds.flatMap((kind) => formatWords(format).map((word) => `route ${word}, ${pathOf(kind)}`));
}

/** Parts of an `attention`, `attend` or `kv_write`. */
export interface AttentionParts {
  op: "attention" | "attend" | "kv_write";
  headDim: number;
  heads: number;
  kvHeads: number;
  /** format of the pages */ pages: string;
  window: number | null;
  /** attention only, as in the op */ ownsKv?: boolean;
  keysAreValues?: boolean;
  normValues?: boolean;
  rotatedPairs?: number;
  positionScale?: number;
  scoreScale?: number;
  /** a sequence has several decode rows in the run */ verifies?: boolean;
  gathered?: boolean;
  /** prompt rows of blocks see more than earlier keys */ block?: string;
}

/** Variants of an op on KV pages, on decode rows, prompt rows or both. */
export function attentionVariants(a: AttentionParts, paths: readonly ("row" | "prompt")[]): string[] {
  const name = `${a.op} d=${a.headDim} ${a.pages}`;
  if (a.op === "kv_write") return [name];
  const variants: string[] = [];
  for (const path of paths) {
    const reach = a.window === null ? "full" : "sliding";
    const ratio = a.heads / a.kvHeads;
    // Query heads that share a KV head, as far as a threadgroup takes them together.
    const together = ratio % 4 === 0 ? 4 : ratio % 2 === 0 ? 2 : 1;
    variants.push(path === "prompt" ? `${name}, prompt` : `${name}, ${reach} row`);
    if (path === "row" && a.window === null) variants.push(`${name} ${together} heads together, row`);
    const words = [reach];
    if (a.op === "attention") {
      words.push(!a.ownsKv ? "shared" : a.keysAreValues ? "keys are values" : "own keys");
      if (a.normValues === false) words.push("raw values");
      if (a.rotatedPairs! < a.headDim / 2) words.push("partial rotation");
      if ((a.positionScale ?? 1) !== 1) words.push("scaled positions");
      if ((a.scoreScale ?? 1) !== 1) words.push("scaled scores");
    }
    if (a.gathered) words.push("gathered");
    if (path === "prompt" && a.block !== undefined && a.block !== "causal") words.push(`blocks: ${a.block}`);
    if (a.verifies && path === "row") words.push("rows of one sequence");
    for (const word of words) variants.push(`${a.op} ${word}, ${path}`);
  }
  return variants;
}

/** Variants of an attention between rows of a tower: kernels take heads up to a size. */
export function towerAttentionVariants(
  op: { kind: "patch_attention" | "local_attention"; headDim: number },
): string[] {
  const parts = Math.ceil(op.headDim / 32);
  const lanes = op.kind === "patch_attention" ? parts : 2 ** Math.ceil(Math.log2(parts));
  return [`${op.kind} of heads up to ${32 * lanes}`];
}

/** Tokens from which on a vocabulary takes several rounds of selection. */
const LARGE_VOCABULARY = 65536;

/** Variants of `candidates`. */
export function candidatesVariants(
  c: { vocabulary: number; rows: number; adjusted?: boolean; masked?: boolean },
): string[] {
  const variants = [`candidates of a ${c.vocabulary < LARGE_VOCABULARY ? "small" : "large"} vocabulary`];
  if (c.rows > 1) variants.push("candidates of several rows");
  if (c.adjusted) variants.push("candidates after adjustments");
  if (c.masked) variants.push("candidates under a mask");
  return variants;
}

/** Every variant that runs of these ops may need, in the order of the ops. */
export function variantsOf(ops: readonly Op[]): Set<string> {
  return new Set(ops.flatMap(variantsOfOp));
}

function variantsOfOp(op: Op): string[] {
  switch (op.kind) {
    case "embed":
      return [...tableVariants(op.kind, storedFormat(op.table)), ...(op.soft ? [SOFT_TOKENS] : [])];
    case "draft_input":
    case "centroid_head":
    case "per_layer_inputs":
      return tableVariants(op.kind, storedFormat(op.table));
    case "linear":
      return linearVariants(
        { ...op, formats: op.weights.map(storedFormat), epilogue: op.epilogue.kind },
        // Bounds and SiLU belong to towers, whose rows are those of prompts.
        op.clip || op.epilogue.kind === "silu" ? PROMPT_KINDS : ROW_KINDS,
      );
    case "route":
      return routeVariants(storedFormat(op.projection), ROW_KINDS);
    case "expert_gate_up":
      return expertVariants(op.kind, op.weights.map(storedFormat), ROW_KINDS);
    case "expert_down":
    case "expert_linear":
      return expertVariants(op.kind, [storedFormat(op.weight)], ROW_KINDS);
    case "attention": {
      const parts = {
        ...op,
        op: op.kind,
        pages: pagesWord(op.kv),
        rotatedPairs: op.rope.rotatedPairs,
        positionScale: op.rope.positionScale,
      };
      return [
        ...attentionVariants(parts, ["row", "prompt"]),
        ...attentionVariants({ ...parts, verifies: true }, ["row"]),
      ];
    }
    case "attend":
      return attentionVariants({ ...op, op: op.kind, pages: pagesWord(op.kv) }, ["row", "prompt"]);
    case "kv_write":
      return attentionVariants(
        { ...op, op: op.kind, pages: pagesWord(op.kv), heads: op.kvHeads, window: null },
        ["row", "prompt"],
      );
    case "candidates": {
      const vocabulary = op.logits.shape[1] as number;
      return candidatesVariants({ vocabulary, rows: 2, adjusted: true, masked: true });
    }
    case "patch_attention":
    case "local_attention":
      return towerAttentionVariants(op);
    default:
      return [op.kind];
  }
}

/** The format of KV pages as kernels are named by it. */
function pagesWord({ pages: { format } }: KvLayer): string {
  return format.kind === "i8" ? "q8" : format.kind;
}

function storedFormat({ format, scales }: Tensor): StoredFormat {
  return { ...format, scales: scales?.format.kind };
}

/** The format as kernels are named by it and, where codes come in groups, as they are laid out. */
function formatWords({ kind, type, bits, group, scales }: StoredFormat): string[] {
  if (type !== undefined) return [type];
  return group === undefined ? [kind] : [`${kind}${bits ?? ""}+${scales}`, `${kind}${bits ?? ""}/${group}`];
}
