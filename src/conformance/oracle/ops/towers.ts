/** Ops of the vision and audio towers alone. */
import { addPositions, lightConv, localAttention, patchAttention, pool, subsample } from "../towers.ts";
import { columns, type OpTable } from "./forward.ts";

/** See the head of this file. */
export const TOWERS: OpTable<
  "add_positions" | "patch_attention" | "pool" | "subsample" | "local_attention" | "light_conv"
> = {
  add_positions(op, { read, readRow, write }) {
    const table = (row: number) => readRow(op.table, row);
    write(op.y, addPositions(read(op.x), columns(op.x), table, read(op.positions), op));
  },
  patch_attention(op, { read, write }) {
    const [q, k, v] = [op.q, op.k, op.v].map(read);
    write(op.y, patchAttention(q, k, v, read(op.qNorm), read(op.kNorm), read(op.positions), op));
  },
  pool({ x, members, factor, bias, scale, y }, { read, maybe, write }) {
    const cells = read(members), width = columns(members);
    write(y, pool(read(x), columns(x), cells, width, factor, maybe(bias), maybe(scale)));
  },
  subsample(op, { read, write, rows }) {
    const { length } = rows(op.y);
    write(op.y, subsample(read(op.x), read(op.valid), read(op.weight), read(op.norm), length, op));
  },
  local_attention(op, { read, write }) {
    const [q, k, v] = [op.q, op.k, op.v].map(read);
    write(op.y, localAttention(q, k, v, read(op.perDimScale), read(op.relative), read(op.valid), op));
  },
  light_conv({ x, weight, norm, eps, y }, { read, write }) {
    write(y, lightConv(read(x), read(weight), read(norm), eps));
  },
};
