/** What the ops of one forward read and write. */
import type { InputRow, RunInput } from "../../../engine/input.ts";
import type { KvLayer, Op } from "../../../schedule/ops.ts";
import type { Tensor } from "../../../schedule/tensor.ts";
import type { KvView } from "../attention.ts";

/** The tensors of a plan and the rows of one input. */
export interface Forward {
  readonly input: RunInput;
  /** live rows of a tensor */ read(tensor: Tensor): Float64Array;
  /** as `read`, where an op may go without the tensor */ maybe(
    tensor: Tensor | undefined,
  ): Float64Array | undefined;
  /** one row of a tensor that is stored */ readRow(tensor: Tensor, row: number): Float64Array;
  write(tensor: Tensor, values: Float64Array): void;
  kv(layer: KvLayer): KvView;
  /** input rows that the rows of a tensor stand for */ rows(tensor: Tensor): readonly InputRow[];
}

/** A function for each kind of op, which runs it. */
export type OpTable<Kind extends Op["kind"]> = {
  readonly [K in Kind]: (op: Extract<Op, { kind: K }>, forward: Forward) => void;
};

/** Values of a row. */
export function columns(tensor: Tensor): number {
  return tensor.shape[tensor.shape.length - 1] as number;
}
