/** Attention over KV pages, whole and in its parts. */
import type { Tensor } from "../../../schedule/tensor.ts";
import { attend, attention, kvWrite, type Place } from "../attention.ts";
import { rope } from "../rope.ts";
import type { Forward, OpTable } from "./forward.ts";

/** Where the rows of a tensor stand, with the page tables of a layer group. */
function placesOf(tensor: Tensor, group: number, { rows, input }: Forward): Place[] {
  return rows(tensor).map(({ position, sequence, block }) => ({
    position,
    table: input.sequences[sequence][group],
    block,
  }));
}

/** See the head of this file. */
export const ATTENTION: OpTable<"attention" | "rope" | "kv_write" | "attend"> = {
  attention(op, forward) {
    const { read, maybe, write, kv } = forward;
    const places = placesOf(op.y, op.kv.group, forward);
    write(op.y, attention(read(op.qkv), maybe(op.qNorm), maybe(op.kNorm), kv(op.kv), op, places));
  },
  rope(op, { read, write, rows }) {
    const positions = rows(op.x).map((row) => row.position);
    write(op.y, rope(read(op.x), op.heads, op.headDim, op.rope, positions));
  },
  kv_write({ k, v, kv }, forward) {
    kvWrite(forward.kv(kv), forward.read(k), forward.read(v), placesOf(k, kv.group, forward));
  },
  attend(op, forward) {
    const places = placesOf(op.q, op.kv.group, forward);
    forward.write(op.y, attend(forward.read(op.q), forward.kv(op.kv), op, places));
  },
};
