/** What the kernel benchmark times: the ops of a real model's schedule, with its sizes and formats. */
import { parseConfig } from "../../src/checkpoint/config.ts";
import { PAGE_TOKENS, pageGroups } from "../../src/schedule/groups.ts";
import type { Op } from "../../src/schedule/ops.ts";
import { phantomWeights } from "../../src/schedule/phantom.ts";
import { GGUF_BLOCKS, type GgufType } from "../../src/checkpoint/gguf_types.ts";
import type { Format, Tensor } from "../../src/schedule/tensor.ts";
import { unplacedPlan } from "../../src/schedule/unplaced.ts";
import { configOf, shapes } from "../synthetic.ts";

/** Ops that are timed together, most often one. */
export interface KernelCase {
  name: string;
  ops: Op[];
  /** rows of the run; up to 16 are decode rows, and all of them produce output */ rows: number;
  /** position of the last row, plus 1 */ context: number;
  /** page groups of the plan */ groups: number;
  /** pages of each sequence in each group */ pages: number;
  vocabulary: number;
}

/** Contexts of attention. */
const CONTEXTS = [1024, 8192];
const TABLE_ROWS = 16384;
/** Rows of a prompt's chunk. */
const PROMPT_ROWS = 512;

const ROLES: Record<string, string> = {
  embedded: "embedding",
  per_layer_projected: "PLE projection of all layers",
  per_layer_inputs: "PLE norms of all layers",
  qkv: "q/k/v",
  attention: "attention",
  o: "attention output",
  mlp: "gate+up",
  down: "down",
  per_layer_gate: "PLE gate",
  per_layer: "PLE projection",
  logits: "LM head",
  candidate_ids: "candidates",
};

/** The ops of a model's schedule, one of each kind and size: a token's, and those of a prompt that are products or attention. */
export function kernelCases(shape: string): KernelCase[] {
  const config = parseConfig(configOf(shapes[shape]));
  const weights = phantomWeights(config);
  const cases: KernelCase[] = [];
  const seen = new Set<string>();
  for (const [variant, rows] of [["decode", 1], ["prefill", PROMPT_ROWS]] as const) {
    const { plan } = unplacedPlan(config, weights, { variant, rows, kvFormat: "f16" });
    for (const op of plan.ops) {
      const role = ROLES[resultOf(op).name.replace(/^layers\.\d+\./, "")];
      if (role === undefined) continue;
      const attends = op.kind === "attention";
      // Products of rows that gather has kept, and small ops, are not what a prompt's time is made of.
      const heavy = attends || op.kind === "linear" && resultOf(op).shape[0] === "rows";
      if (variant === "prefill" && !heavy || attends && !op.ownsKv) continue;
      const reach = !attends ? "" : op.window === null ? " full" : " sliding";
      const contexts = !attends ? [rows] : op.window === null ? CONTEXTS : CONTEXTS.slice(0, 1);
      for (const context of contexts) {
        const size = op.kind === "linear" ? ` ${op.weights.map((w) => w.shape.join("×")).join(" ")}` : "";
        const at = attends ? ` at ${context}` : "";
        const name = `${role}${reach}${size}${at}${rows > 1 ? `, ${rows} rows` : ""}`;
        if (seen.has(name)) continue;
        seen.add(name);
        cases.push({
          name,
          ops: [withSmallTable(op)],
          rows,
          context,
          groups: pageGroups(config).length,
          pages: Math.ceil(context / PAGE_TOKENS),
          vocabulary: "table" in op ? TABLE_ROWS : config.vocabularySize,
        });
      }
    }
  }
  return cases;
}

/** Formats that `withFormat` takes. */
export const OTHER_FORMATS: readonly string[] = [...Object.keys(GGUF_BLOCKS), "mxfp4", "mxfp8", "nvfp4"];

/** The op with its quantised matrices in another format. */
export function withFormat(op: Op, name: string): Op {
  const group = name === "nvfp4" ? 16 : 32;
  const format: Format = name in GGUF_BLOCKS
    ? { kind: "gguf", type: name as GgufType }
    : { kind: name as "mxfp4" | "mxfp8" | "nvfp4", group };
  const change = (tensor: Tensor): Tensor => {
    const columns = tensor.shape[tensor.shape.length - 1] as number;
    if (tensor.format.kind !== "affine") return tensor;
    const shape = [...tensor.shape.slice(0, -1), columns / group];
    const scales: Tensor = {
      ...tensor,
      name: `${tensor.name}.scales${group}`,
      format: { kind: "i8" },
      shape,
    };
    const plain = { ...tensor, format, scales: undefined, biases: undefined };
    return format.kind === "gguf"
      ? plain
      : { ...plain, scales: { ...scales, scales: undefined, biases: undefined } };
  };
  if (op.kind === "linear") return { ...op, weights: op.weights.map(change) };
  return "table" in op ? { ...op, table: change(op.table) } : op;
}

/** Rows of a table are all alike, and gigabytes of them would have to be written first. */
function withSmallTable(op: Op): Op {
  if (!("table" in op)) return op;
  const cut = (tensor: Tensor): Tensor => ({ ...tensor, shape: [TABLE_ROWS, tensor.shape[1]] });
  const { table } = op;
  const { scales, biases } = table;
  return {
    ...op,
    table: { ...cut(table), scales: scales && cut(scales), biases: biases && cut(biases) },
  };
}

/** The tensor that an op is named after. */
function resultOf(op: Op): Tensor {
  return op.kind === "candidates" ? op.ids : op.kind === "kv_write" ? op.k : op.y;
}
