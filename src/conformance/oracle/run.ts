/**
 * Runs a whole plan in float64. It knows the plan and the input block's contents, nothing of any device; activations
 * are held by tensor, so it needs no arena.
 */
import type { InputRow, RunInput } from "../../engine/input.ts";
import type { KvLayer, Op } from "../../schedule/ops.ts";
import type { Plan } from "../../schedule/plan.ts";
import type { Tensor } from "../../schedule/tensor.ts";
import { geluMul, softcap } from "./activation.ts";
import { attend, attention, type KvView, kvWrite, type Place } from "./attention.ts";
import { CANDIDATES, candidates } from "./candidates.ts";
import { centroidHead, draftInput } from "./drafter.ts";
import { embed, gather, perLayerInputs } from "./embed.ts";
import { linear, type LinearEpilogue } from "./linear.ts";
import { expertGateUp, expertLinear, type ExpertMatrix, expertSum, routerLogits, topK } from "./moe.ts";
import { add, rmsNorm } from "./norm.ts";
import { headDimOf, readPages, storedHead } from "./pages.ts";
import { rope } from "./rope.ts";
import {
  addPositions,
  layerNorm,
  lightConv,
  localAttention,
  patchAttention,
  pool,
  subsample,
} from "./towers.ts";
import { readRow, readTensor, sizesOf } from "./weights.ts";

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
    this.plan.ops.forEach((op, index) => {
      this.#execute(op, input);
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

  #execute(op: Op, input: RunInput): void {
    const read = (tensor: Tensor) => this.value(tensor, input);
    const maybe = (tensor: Tensor | undefined) => tensor && read(tensor);
    const columns = (tensor: Tensor) => tensor.shape[tensor.shape.length - 1] as number;
    const write = (tensor: Tensor, values: Float64Array) => this.#activations.set(tensor, values);
    const rows = (tensor: Tensor) => rowsOf(tensor, input);
    const tokens = (tensor: Tensor) => rows(tensor).map((row) => row.token);
    const tableRow = (table: Tensor) => (token: number) =>
      readRow(table, token, this.buffers, this.plan.limits);
    const places = (tensor: Tensor, group: number): Place[] =>
      rows(tensor).map(({ position, sequence, block }) => ({
        position,
        table: input.sequences[sequence][group],
        block,
      }));
    const matrix = (tensor: Tensor): ExpertMatrix => ({
      values: read(tensor),
      rows: tensor.shape[1] as number,
      n: columns(tensor),
    });
    switch (op.kind) {
      case "embed": {
        const softRows = rows(op.y).map((row) => row.soft);
        const soft = (i: number) =>
          op.soft && softRows[i] !== undefined ? tableRow(op.soft)(softRows[i]) : undefined;
        return void write(op.y, embed(tableRow(op.table), columns(op.table), tokens(op.y), op.scale, soft));
      }
      case "per_layer_inputs":
        return void write(
          op.y,
          perLayerInputs(read(op.projected), tableRow(op.table), read(op.norm), tokens(op.y), op),
        );
      case "linear": {
        const epilogue: LinearEpilogue = op.epilogue.kind === "gelu_mul"
          ? { ...op.epilogue, other: read(op.epilogue.other), m: columns(op.epilogue.other) }
          : op.epilogue;
        const { h, y } = linear({
          x: read(op.x),
          k: columns(op.x),
          residual: maybe(op.residual),
          postNorm: maybe(op.postNorm),
          scalar: maybe(op.scalar)?.[0],
          preNorm: maybe(op.preNorm),
          matrices: op.weights.map((w, i) => ({
            w: read(w),
            bias: maybe(op.biases?.[i]),
            n: w.shape[0] as number,
          })),
          epilogue,
          clip: op.clip,
          eps: op.eps,
        });
        if (op.hOut) write(op.hOut, h);
        return void write(op.y, y);
      }
      case "attention":
        return void write(
          op.y,
          attention(
            read(op.qkv),
            maybe(op.qNorm),
            maybe(op.kNorm),
            this.#kv(op.kv),
            op,
            places(op.y, op.kv.group),
          ),
        );
      case "gather":
        return void write(op.y, gather(read(op.x), columns(op.x), input.outputs.map((output) => output.row)));
      case "candidates": {
        const logits = read(op.logits);
        const found = input.outputs.map((output, i) =>
          candidates(logits.subarray(i * columns(op.logits), (i + 1) * columns(op.logits)), output)
        );
        const join = (parts: ArrayLike<number>[], width: number) => {
          const all = new Float64Array(parts.length * width);
          parts.forEach((part, i) => all.set(part, i * width));
          return all;
        };
        write(op.ids, join(found.map((f) => f.ids), CANDIDATES));
        write(op.values, join(found.map((f) => f.values), CANDIDATES));
        return void write(op.stats, join(found.map((f) => f.stats), 4));
      }
      case "route": {
        const logits = routerLogits(read(op.x), read(op.scale), read(op.projection), op);
        const choice = topK(logits, read(op.perExpertScale), columns(op.experts));
        write(op.experts, choice.experts);
        return void write(op.y, choice.shares);
      }
      case "top_k": {
        const choice = topK(read(op.logits), read(op.perExpertScale), columns(op.experts));
        write(op.experts, choice.experts);
        return void write(op.y, choice.shares);
      }
      case "expert_gate_up":
        return void write(
          op.y,
          expertGateUp(
            read(op.x),
            maybe(op.preNorm),
            read(op.experts),
            columns(op.experts),
            op.weights.map(matrix),
            op.eps,
          ),
        );
      case "expert_linear": {
        const K = columns(op.experts);
        return void write(
          op.y,
          expertLinear(read(op.x), read(op.experts), K, matrix(op.weight), op.firstRow, columns(op.y) / K),
        );
      }
      case "expert_down": {
        const K = columns(op.experts);
        const products = expertLinear(read(op.x), read(op.experts), K, matrix(op.weight), 0, columns(op.y));
        return void write(op.y, expertSum(products, read(op.shares), K));
      }
      case "expert_sum":
        return void write(op.y, expertSum(read(op.x), read(op.shares), columns(op.shares)));
      case "add_norms": {
        const n = columns(op.y);
        const a = rmsNorm(read(op.a), read(op.aNorm), n, op.eps);
        return void write(op.y, add(a, rmsNorm(read(op.b), read(op.bNorm), n, op.eps), 1, 1));
      }
      case "draft_input":
        return void write(op.y, draftInput(tableRow(op.table), read(op.state), tokens(op.y), op.scale));
      case "centroid_head":
        return void write(
          op.y,
          centroidHead(
            read(op.x),
            maybe(op.norm),
            read(op.scores),
            read(op.ordering),
            read(op.table),
            { H: columns(op.x), centroids: columns(op.scores), topK: op.topK, eps: op.eps },
          ),
        );
      case "rms_norm":
        return void write(op.y, rmsNorm(read(op.x), maybe(op.weight), op.group, op.eps, op.inScale));
      case "add":
        return void write(op.y, add(read(op.a), maybe(op.b), op.aScale, op.bScale, maybe(op.scalar)?.[0]));
      case "gelu_mul":
        return void write(op.y, geluMul(read(op.a), columns(op.a), read(op.b), columns(op.b), op.column));
      case "softcap":
        return void write(op.y, softcap(read(op.x), op.cap));
      case "rope":
        return void write(
          op.y,
          rope(read(op.x), op.heads, op.headDim, op.rope, rows(op.x).map((row) => row.position)),
        );
      case "kv_write":
        return kvWrite(this.#kv(op.kv), read(op.k), read(op.v), places(op.k, op.kv.group));
      case "attend":
        return void write(op.y, attend(read(op.q), this.#kv(op.kv), op, places(op.q, op.kv.group)));
      case "add_positions":
        return void write(
          op.y,
          addPositions(read(op.x), columns(op.x), tableRow(op.table), read(op.positions), op),
        );
      case "patch_attention": {
        const positions = read(op.positions);
        const [q, k, v] = [read(op.q), read(op.k), read(op.v)];
        return void write(op.y, patchAttention(q, k, v, read(op.qNorm), read(op.kNorm), positions, op));
      }
      case "pool": {
        const members = read(op.members);
        return void write(
          op.y,
          pool(
            read(op.x),
            columns(op.x),
            members,
            columns(op.members),
            op.factor,
            maybe(op.bias),
            maybe(op.scale),
          ),
        );
      }
      case "subsample":
        return void write(
          op.y,
          subsample(read(op.x), read(op.valid), read(op.weight), read(op.norm), rows(op.y).length, op),
        );
      case "local_attention": {
        const [q, k, v] = [read(op.q), read(op.k), read(op.v)];
        return void write(
          op.y,
          localAttention(q, k, v, read(op.perDimScale), read(op.relative), read(op.valid), op),
        );
      }
      case "light_conv":
        return void write(op.y, lightConv(read(op.x), read(op.weight), read(op.norm), op.eps));
      case "layer_norm":
        return void write(
          op.y,
          layerNorm(read(op.x), columns(op.x), read(op.weight), maybe(op.bias), op.eps),
        );
    }
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
