/**
 * Runs a whole plan in float64. It knows the plan and the input block's contents, nothing of any device; activations
 * are held by tensor, so it needs no arena.
 */
import type { InputRow, RunInput } from "../../engine/input.ts";
import type { KvLayer, Op } from "../../schedule/ops.ts";
import type { Plan } from "../../schedule/plan.ts";
import type { Tensor } from "../../schedule/tensor.ts";
import type { KvView } from "./attention.ts";
import { ATTENTION } from "./ops/attention.ts";
import { EXPERTS } from "./ops/experts.ts";
import type { Forward, OpTable } from "./ops/forward.ts";
import { LINEAR } from "./ops/linear.ts";
import { LOOKUP } from "./ops/lookup.ts";
import { POINTWISE } from "./ops/pointwise.ts";
import { TOWERS } from "./ops/towers.ts";
import { headDimOf, readPages, storedHead } from "./pages.ts";
import { readRow, readTensor, sizesOf } from "./weights.ts";

const OPS: OpTable<Op["kind"]> = {
  ...LOOKUP,
  ...LINEAR,
  ...ATTENTION,
  ...EXPERTS,
  ...POINTWISE,
  ...TOWERS,
};

function execute<K extends Op["kind"]>(op: Extract<Op, { kind: K }>, forward: Forward): void {
  (OPS as OpTable<K>)[op.kind as K](op, forward);
}

/** A plan with its weights, run by run; KV pages stay between runs. */
export class Oracle {
  /** activations of the latest run, live rows only */
  readonly #activations = new Map<Tensor, Float64Array>();
  readonly #weights = new Map<Tensor, Float64Array>();
  /** KV pages by buffer and offset, as several tensors may name the same pages */
  readonly #pages: Map<string, Float64Array>;

  /**
   * @param buffers bytes of each buffer of the plan; the arena's (index 0) are not read. Tensors that no op has
   * written are read from here, KV pages too at their first use.
   * @param sharesPagesWith a run of another plan whose KV buffers have the same indices
   */
  constructor(readonly plan: Plan, readonly buffers: readonly Uint8Array[], sharesPagesWith?: Oracle) {
    this.#pages = sharesPagesWith ? sharesPagesWith.#pages : new Map();
  }

  /** One forward; returns every output of the plan, live rows only. `onOp` sees each op after it ran. */
  run(input: RunInput, onOp?: (op: Op, index: number) => void): Float64Array[] {
    this.#activations.clear();
    const forward = this.#forward(input);
    this.plan.ops.forEach((op, index) => {
      execute(op, forward);
      onOp?.(op, index);
    });
    return this.plan.outputs.map((tensor) => this.value(tensor, input));
  }

  /** Live rows of a tensor: what the latest run wrote, else what its buffer holds. */
  value(tensor: Tensor, input: RunInput): Float64Array {
    const activation = this.#activations.get(tensor);
    if (activation) return activation;
    if (tensor.buffer === 0) throw new RangeError(`${tensor.name} is read before an op writes it.`);
    const stored = this.#weight(tensor);
    const [leading] = tensor.shape;
    if (typeof leading === "number") return stored;
    return stored.subarray(0, stored.length / this.plan.limits[leading] * live(leading, input));
  }

  /** All values of a KV tensor. */
  pages(tensor: Tensor): Float64Array {
    const key = `${tensor.buffer}:${tensor.offset}`;
    let values = this.#pages.get(key);
    if (!values) {
      values = readPages(tensor, this.buffers, this.plan.limits);
      this.#pages.set(key, values);
    }
    return values;
  }

  #weight(tensor: Tensor): Float64Array {
    let values = this.#weights.get(tensor);
    if (!values) {
      values = readTensor(tensor, this.buffers, this.plan.limits);
      this.#weights.set(tensor, values);
    }
    return values;
  }

  #kv({ pages, layer }: KvLayer): KvView {
    const [, planes, kvHeads] = sizesOf(pages, this.plan.limits);
    const stored = (head: Float64Array) => storedHead(pages.format, head);
    return { values: this.pages(pages), planes, layer, kvHeads, d: headDimOf(pages), stored };
  }

  #forward(input: RunInput): Forward {
    return {
      input,
      read: (tensor) => this.value(tensor, input),
      maybe: (tensor) => tensor && this.value(tensor, input),
      readRow: (tensor, row) => readRow(tensor, row, this.buffers, this.plan.limits),
      write: (tensor, values) => void this.#activations.set(tensor, values),
      kv: (layer) => this.#kv(layer),
      rows: (tensor) => rowsOf(tensor, input),
    };
  }
}

/** Live value of a symbol that counts rows. */
function live(symbol: string, input: RunInput): number {
  if (symbol === "rows") return input.rows.length;
  if (symbol === "out_rows") return input.outputs.length;
  throw new RangeError(`No activation has ${symbol} as its first extent.`);
}

/** The input rows that the rows of a tensor stand for. */
function rowsOf(tensor: Tensor, input: RunInput): readonly InputRow[] {
  return tensor.shape[0] === "out_rows" ? input.outputs.map((output) => input.rows[output.row]) : input.rows;
}
