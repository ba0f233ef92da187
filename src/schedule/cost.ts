/** What an op costs: bytes moved, floating-point operations, dispatches. The arithmetic behind `explain`. */
import { dispatchesOf, type MatrixUnits } from "./dispatches.ts";
import type { Op } from "./ops.ts";
import { rowBytes } from "./plan.ts";
import type { Dim, Tensor } from "./tensor.ts";

/** The sizes of one run. */
export interface RunShape {
  /** tokens in the forward */ rows: number;
  /** rows that produce output */ outRows: number;
  /** tokens in the cache before the run */ context: number;
}

/** Costs of one op in one run. */
export interface OpCost {
  /** on a GPU */ dispatches: number;
  /** weights, KV pages and activations read and written */ bytes: number;
  /** of these, weights */ weightBytes: number;
  /** multiplications and additions count one each */ flops: number;
}

/**
 * Cost of an op. Pages and activations count once however often a kernel touches them. `units`: where decode rows take
 * matrix units. `clusters`: where threadgroups may send each other values.
 */
export function costOf(op: Op, shape: RunShape, units?: MatrixUnits, clusters?: boolean): OpCost {
  return { dispatches: dispatchesOf(op, shape, units, clusters), ...amounts(op, shape) };
}

function amounts(op: Op, shape: RunShape): Omit<OpCost, "dispatches"> {
  const rowsOf = (tensor: Tensor) => countOf(tensor.shape[0], shape);
  const active = (...tensors: (Tensor | undefined)[]) =>
    tensors.reduce((sum, t) => sum + (t ? rowsOf(t) * rowBytes(t.format, columns(t)) : 0), 0);
  switch (op.kind) {
    case "embed": {
      const weights = rowsOf(op.y) * storedRow(op.table);
      return cost(weights, active(op.y), rowsOf(op.y) * columns(op.y));
    }
    case "per_layer_inputs": {
      const weights = rowsOf(op.y) * storedRow(op.table) + storedBytes(op.norm);
      return cost(weights, active(op.projected, op.y), 8 * rowsOf(op.y) * columns(op.y));
    }
    case "linear": {
      const norms = [op.postNorm, op.preNorm, op.scalar, ...(op.biases ?? [])];
      const weights = [...op.weights, ...norms].reduce((sum, t) => sum + (t ? storedBytes(t) : 0), 0);
      const other = op.epilogue.kind === "gelu_mul" ? rowsOf(op.y) * columns(op.y) * 4 : 0;
      const products = op.weights.reduce((sum, w) => sum + columns(w) * (w.shape[0] as number), 0);
      const prologue = (op.postNorm ? 6 : 0) + (op.preNorm ? 4 : 0);
      return cost(
        weights,
        active(op.x, op.residual, op.hOut, op.y) + other,
        rowsOf(op.y) * (2 * products + prologue * columns(op.x)),
      );
    }
    case "attention": {
      const width = op.heads * op.headDim;
      const { bytes, flops } = attended(op.kv.pages, op, rowsOf(op.y), shape.context);
      const cached = op.ownsKv ? rowsOf(op.y) * 2 * op.kvHeads * headBytes(op.kv.pages) : 0;
      return cost(0, active(op.qkv, op.y) + bytes + cached, flops + 8 * rowsOf(op.y) * width);
    }
    case "attend": {
      const { bytes, flops } = attended(op.kv.pages, op, rowsOf(op.y), shape.context);
      return cost(0, active(op.q, op.y) + bytes, flops);
    }
    case "kv_write":
      return cost(0, active(op.k, op.v) * (1 + headBytes(op.kv.pages) / (4 * op.headDim)), 0);
    case "gather":
      return cost(0, 2 * active(op.y), 0);
    case "candidates":
      return cost(
        0,
        active(op.logits, op.ids, op.values, op.stats),
        4 * rowsOf(op.logits) * columns(op.logits),
      );
    case "route": {
      const weights = storedBytes(op.projection) + storedBytes(op.scale) + storedBytes(op.perExpertScale);
      const products = 2 * columns(op.x) * (op.projection.shape[0] as number);
      return cost(weights, active(op.x, op.experts, op.y), rowsOf(op.y) * (products + 4 * columns(op.x)));
    }
    case "expert_gate_up": {
      const slots = columns(op.experts);
      const weights = op.weights.reduce((sum, w) => sum + expertBytes(w, slots, rowsOf(op.y)), 0);
      const products = op.weights.reduce((sum, w) => sum + columns(w) * (w.shape[1] as number), 0);
      return cost(weights, active(op.x, op.experts, op.y), 2 * rowsOf(op.y) * slots * products);
    }
    case "expert_down": {
      const slots = columns(op.experts);
      const products = columns(op.weight) * (op.weight.shape[1] as number);
      return cost(
        expertBytes(op.weight, slots, rowsOf(op.y)),
        active(op.x, op.experts, op.shares, op.y),
        2 * rowsOf(op.y) * slots * products,
      );
    }
    case "expert_linear": {
      const [slots, rows] = [columns(op.experts), rowsOf(op.y)];
      const share = columns(op.y) / slots / (op.weight.shape[1] as number); // of each expert's rows
      return cost(
        share * expertBytes(op.weight, slots, rows),
        active(op.x, op.experts, op.y),
        2 * rows * columns(op.y) * columns(op.weight),
      );
    }
    case "expert_sum":
      return cost(0, active(op.x, op.shares, op.y), 2 * rowsOf(op.y) * columns(op.x));
    case "top_k":
      return cost(
        storedBytes(op.perExpertScale),
        active(op.logits, op.experts, op.y),
        columns(op.y) * rowsOf(op.y) * columns(op.logits),
      );
    case "add_norms":
      return cost(
        storedBytes(op.aNorm) + storedBytes(op.bNorm),
        active(op.a, op.b, op.y),
        9 * rowsOf(op.y) * columns(op.y),
      );
    case "draft_input":
      return cost(rowsOf(op.y) * storedRow(op.table), active(op.state, op.y), rowsOf(op.y) * columns(op.y));
    case "centroid_head": {
      const tokens = op.topK * columns(op.ordering); // of each row
      const read = Math.min(rowsOf(op.y) * tokens, op.table.shape[0] as number);
      return cost(
        read * (storedRow(op.table) + 4),
        active(op.x, op.scores, op.y),
        2 * rowsOf(op.y) * tokens * columns(op.x),
      );
    }
    case "rms_norm":
      return cost(
        op.weight ? storedBytes(op.weight) : 0,
        active(op.x, op.y),
        4 * rowsOf(op.y) * columns(op.y),
      );
    case "add":
      return cost(0, active(op.a, op.b, op.y), 3 * rowsOf(op.y) * columns(op.y));
    case "gelu_mul":
      return cost(0, active(op.a, op.a, op.y), 12 * rowsOf(op.y) * columns(op.y));
    case "softcap":
    case "rope":
      return cost(0, active(op.x, op.y), 8 * rowsOf(op.y) * columns(op.y));
    case "add_positions":
      return cost(
        2 * rowsOf(op.y) * storedRow(op.table),
        active(op.x, op.positions, op.y),
        2 * rowsOf(op.y) * columns(op.y),
      );
    case "patch_attention": {
      const rows = rowsOf(op.y);
      return cost(
        storedBytes(op.qNorm) + storedBytes(op.kNorm),
        active(op.q, op.k, op.v, op.positions, op.y),
        4 * rows * rows * columns(op.y) + 30 * rows * columns(op.y),
      );
    }
    case "pool": {
      const members = rowsOf(op.y) * columns(op.members);
      return cost(
        [op.bias, op.scale].reduce((sum, t) => sum + (t ? storedBytes(t) : 0), 0),
        active(op.members, op.y) + members * columns(op.x) * 4,
        members * columns(op.x),
      );
    }
    case "subsample": {
      const outputs = rowsOf(op.y) * columns(op.y);
      return cost(
        storedBytes(op.weight) + storedBytes(op.norm),
        active(op.x, op.valid, op.y),
        outputs * (2 * columns(op.weight) + 6),
      );
    }
    case "local_attention": {
      const keys = Math.max(op.left, 1) + Math.max(op.right - 1, 0);
      return cost(
        storedBytes(op.perDimScale) + storedBytes(op.relative),
        active(op.q, op.k, op.v, op.valid, op.y),
        (6 * rowsOf(op.y) + 2 * columns(op.relative)) * keys * columns(op.y),
      );
    }
    case "light_conv":
      return cost(
        storedBytes(op.weight) + storedBytes(op.norm),
        active(op.x, op.y),
        rowsOf(op.y) * columns(op.y) * (2 * columns(op.weight) + 20),
      );
    case "layer_norm":
      return cost(
        storedBytes(op.weight) + (op.bias ? storedBytes(op.bias) : 0),
        active(op.x, op.y),
        8 * rowsOf(op.y) * columns(op.y),
      );
  }
}

/** Bytes of a weight with its scales and biases. */
export function storedBytes(tensor: Tensor): number {
  const rows = tensor.shape.slice(0, -1).reduce<number>((product, size) => product * (size as number), 1);
  return rows * storedRow(tensor);
}

/** Bytes of the experts that `rows` rows read, if each of them chooses its `slots` experts evenly. */
function expertBytes(weight: Tensor, slots: number, rows: number): number {
  const experts = weight.shape[0] as number;
  const touched = experts * (1 - (1 - slots / experts) ** rows);
  return touched / experts * storedBytes(weight);
}

function storedRow(tensor: Tensor): number {
  const own = rowBytes(tensor.format, columns(tensor));
  return own + (tensor.scales ? storedRow(tensor.scales) : 0) +
    (tensor.biases ? storedRow(tensor.biases) : 0);
}

function cost(weightBytes: number, otherBytes: number, flops: number): Omit<OpCost, "dispatches"> {
  return { bytes: weightBytes + otherBytes, weightBytes, flops };
}

/** Keys and values that `rows` rows after `context` tokens read, once for all rows, and the products with them. */
function attended(
  pages: Tensor,
  op: { heads: number; kvHeads: number; headDim: number; window: number | null },
  rows: number,
  context: number,
): { bytes: number; flops: number } {
  const limit = op.window ?? Infinity;
  const last = context + rows; // tokens that the last row could see
  const keys = Math.min(last, rows === 0 ? 0 : limit + rows - 1);
  let scores = 0;
  for (let row = 1; row <= rows; row++) scores += Math.min(context + row, limit);
  return {
    bytes: 2 * keys * op.kvHeads * headBytes(pages),
    flops: 4 * scores * op.heads * op.headDim,
  };
}

/** Bytes of a head of a token in KV pages; codes have their scale in it. */
function headBytes(pages: Tensor): number {
  return rowBytes(pages.format, columns(pages));
}

function columns(tensor: Tensor): number {
  return tensor.shape[tensor.shape.length - 1] as number;
}

function countOf(dim: Dim, shape: RunShape): number {
  return dim === "rows" ? shape.rows : dim === "out_rows" ? shape.outRows : dim as number;
}
