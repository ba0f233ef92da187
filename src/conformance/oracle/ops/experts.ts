/** Experts: their choice, their products and the sum. */
import type { Tensor } from "../../../schedule/tensor.ts";
import {
  type Choice,
  expertGateUp,
  expertLinear,
  type ExpertMatrix,
  expertSum,
  routerLogits,
  topK,
} from "../moe.ts";
import { columns, type Forward, type OpTable } from "./forward.ts";

function matrix(weight: Tensor, { read }: Forward): ExpertMatrix {
  return { values: read(weight), rows: weight.shape[1] as number, n: columns(weight) };
}

function writeChoice(
  op: { experts: Tensor; y: Tensor },
  { experts, shares }: Choice,
  { write }: Forward,
): void {
  write(op.experts, experts);
  write(op.y, shares);
}

/** See the head of this file. */
export const EXPERTS: OpTable<
  "route" | "top_k" | "expert_gate_up" | "expert_linear" | "expert_down" | "expert_sum"
> = {
  route(op, forward) {
    const { read } = forward;
    const logits = routerLogits(read(op.x), read(op.scale), read(op.projection), op);
    writeChoice(op, topK(logits, read(op.perExpertScale), columns(op.experts)), forward);
  },
  top_k(op, forward) {
    const { read } = forward;
    writeChoice(op, topK(read(op.logits), read(op.perExpertScale), columns(op.experts)), forward);
  },
  expert_gate_up({ x, preNorm, experts, weights, eps, y }, forward) {
    const { read, maybe, write } = forward;
    const matrices = weights.map((weight) => matrix(weight, forward));
    write(y, expertGateUp(read(x), maybe(preNorm), read(experts), columns(experts), matrices, eps));
  },
  expert_linear({ x, experts, weight, firstRow, y }, forward) {
    const { read, write } = forward;
    const K = columns(experts);
    write(y, expertLinear(read(x), read(experts), K, matrix(weight, forward), firstRow, columns(y) / K));
  },
  expert_down({ x, experts, weight, shares, y }, forward) {
    const { read, write } = forward;
    const K = columns(experts);
    const products = expertLinear(read(x), read(experts), K, matrix(weight, forward), 0, columns(y));
    write(y, expertSum(products, read(shares), K));
  },
  expert_sum({ x, shares, y }, { read, write }) {
    write(y, expertSum(read(x), read(shares), columns(shares)));
  },
};
