/** The fused linear, and what follows the last one. */
import { CANDIDATES, candidates } from "../candidates.ts";
import { centroidHead } from "../drafter.ts";
import { linear, type LinearEpilogue } from "../linear.ts";
import { columns, type OpTable } from "./forward.ts";

/** See the head of this file. */
export const LINEAR: OpTable<"linear" | "centroid_head" | "candidates"> = {
  linear(op, { read, maybe, write }) {
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
    write(op.y, y);
  },
  centroid_head({ x, norm, scores, ordering, table, topK, eps, y }, { read, maybe, write }) {
    const sizes = { H: columns(x), centroids: columns(scores), topK, eps };
    write(y, centroidHead(read(x), maybe(norm), read(scores), read(ordering), read(table), sizes));
  },
  candidates(op, { read, write, input }) {
    const logits = read(op.logits), V = columns(op.logits);
    const found = input.outputs.map((output, i) => candidates(logits.subarray(i * V, (i + 1) * V), output));
    write(op.ids, joined(found.map(({ ids }) => ids), CANDIDATES));
    write(op.values, joined(found.map(({ values }) => values), CANDIDATES));
    write(op.stats, joined(found.map(({ stats }) => stats), 4));
  },
};

function joined(rows: readonly ArrayLike<number>[], width: number): Float64Array {
  const all = new Float64Array(rows.length * width);
  rows.forEach((row, i) => all.set(row, i * width));
  return all;
}
