/** Ops that look up rows: embeddings, and the rows that go on. */
import type { Tensor } from "../../../schedule/tensor.ts";
import { draftInput } from "../drafter.ts";
import { embed, gather, perLayerInputs } from "../embed.ts";
import { columns, type Forward, type OpTable } from "./forward.ts";

const tokensOf = (tensor: Tensor, { rows }: Forward) => rows(tensor).map((row) => row.token);
const rowOf = (table: Tensor, { readRow }: Forward) => (token: number) => readRow(table, token);

/** See the head of this file. */
export const LOOKUP: OpTable<"embed" | "per_layer_inputs" | "draft_input" | "gather"> = {
  embed({ table, soft, scale, y }, forward) {
    const softRows = forward.rows(y).map((row) => row.soft);
    const softRow = (i: number) =>
      soft && softRows[i] !== undefined ? forward.readRow(soft, softRows[i]) : undefined;
    forward.write(y, embed(rowOf(table, forward), columns(table), tokensOf(y, forward), scale, softRow));
  },
  per_layer_inputs(op, forward) {
    const { read, write } = forward;
    const table = rowOf(op.table, forward);
    write(op.y, perLayerInputs(read(op.projected), table, read(op.norm), tokensOf(op.y, forward), op));
  },
  draft_input({ table, state, scale, y }, forward) {
    forward.write(y, draftInput(rowOf(table, forward), forward.read(state), tokensOf(y, forward), scale));
  },
  gather({ x, y }, { read, write, input }) {
    write(y, gather(read(x), columns(x), input.outputs.map((output) => output.row)));
  },
};
