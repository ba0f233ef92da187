/** The ops of towers. */
import type { Tensor } from "../../../src/schedule/tensor.ts";
import {
  beginSample,
  F32,
  finishSample,
  HEAD_DIM,
  HEADS,
  HIDDEN,
  KV_HEADS,
  LIMITS,
  type Sample,
  VOCABULARY,
} from "./parts.ts";

/** The ops of towers, and a text's beginning that takes soft tokens and knows blocks. */
export function towerSample(): Sample {
  const { b, w, kv } = beginSample();
  const activation = (name: string, columns: number) => b.activation(name, ["rows", columns]);
  // bytes that are no indices for the most part
  const ids = (name: string, symbol: "rows" | "out_rows", columns: number): Tensor => {
    const stored = w.add(name, { kind: "u32" }, [LIMITS[symbol], columns]);
    return { ...stored, shape: [symbol, columns] };
  };
  const x = activation("x", HIDDEN);
  b.add({
    kind: "embed",
    table: w.add("table", F32, [VOCABULARY, HIDDEN]),
    soft: w.add("soft", F32, [3, HIDDEN]),
    y: x,
    scale: 1.5,
  });
  const blocked = activation("blocked", HIDDEN);
  b.add({
    kind: "attend",
    q: x,
    kv,
    y: blocked,
    heads: HEADS,
    kvHeads: KV_HEADS,
    headDim: HEAD_DIM,
    window: 20,
    block: "whole",
    scoreScale: 0.2,
  });
  const clipped = activation("clipped", HIDDEN);
  b.add({
    kind: "linear",
    x,
    weights: [w.add("clipped_w", F32, [HIDDEN, HIDDEN])],
    epilogue: { kind: "silu" },
    clip: { input: [-1, 1], output: [-2, 0.5] },
    y: clipped,
    eps: 0,
  });
  const positions = ids("positions", "rows", 2);
  const placed = activation("placed", HIDDEN);
  const table = w.add("position_table", { kind: "bf16" }, [14, HIDDEN]);
  b.add({ kind: "add_positions", x: clipped, table, positions, y: placed, count: 7, step: 1, second: 7 });
  const [qNorm, kNorm] = ["q_norm", "k_norm"].map((name) => w.add(name, F32, [HEAD_DIM]));
  const seen = activation("seen", HIDDEN);
  const part = { heads: HEADS, kvHeads: HEADS, headDim: HEAD_DIM };
  b.add({
    kind: "patch_attention",
    q: placed,
    k: x,
    v: clipped,
    qNorm,
    kNorm,
    positions,
    y: seen,
    ...part,
    theta: 100,
    eps: 1e-6,
    scoreScale: 1,
  });
  const normed = activation("normed", HIDDEN);
  const [norm, bias] = ["norm", "bias"].map((name) => w.add(name, F32, [HIDDEN]));
  b.add({ kind: "layer_norm", x: seen, weight: norm, bias, y: normed, eps: 1e-5 });
  const pooled = b.activation("pooled", ["out_rows", HIDDEN]);
  const members = ids("members", "out_rows", 3);
  b.add({ kind: "pool", x: normed, members, bias, scale: norm, y: pooled, factor: 0.5 });

  const conv = (name: string, outputs: number, inputs: number) => ({
    weight: w.add(`${name}_w`, F32, [outputs, 9 * inputs]),
    norm: w.add(`${name}_norm`, F32, [outputs]),
    eps: 1e-6,
  });
  const halved = activation("halved", 64);
  b.add({
    kind: "subsample",
    x: normed,
    valid: ids("valid", "rows", 2),
    ...conv("first", 4, 1),
    y: halved,
    bins: 32,
    framesPerRow: 2,
    channelsLast: false,
  });
  const quartered = b.activation("quartered", ["out_rows", HIDDEN]);
  b.add({
    kind: "subsample",
    x: halved,
    valid: ids("valid1", "rows", 1),
    ...conv("second", 8, 4),
    y: quartered,
    bins: 16,
    framesPerRow: 1,
    channelsLast: true,
  });
  const heard = b.activation("heard", ["out_rows", HIDDEN]);
  b.add({
    kind: "local_attention",
    q: quartered,
    k: pooled,
    v: quartered,
    perDimScale: w.add("per_dim_scale", F32, [HEAD_DIM]),
    relative: w.add("relative", F32, [HIDDEN, 32]),
    valid: ids("valid2", "out_rows", 1),
    y: heard,
    heads: HEADS,
    headDim: HEAD_DIM,
    left: 3,
    right: 2,
    shift: 1,
    qScale: 0.25,
    kScale: 2,
    cap: 50,
  });
  const convolved = b.activation("convolved", ["out_rows", HEAD_DIM]);
  const taps = w.add("taps", F32, [HEAD_DIM, 3]);
  b.add({ kind: "light_conv", x: heard, weight: taps, norm: qNorm, y: convolved, eps: 1e-6 });
  b.output(convolved);
  return finishSample(b, w, true);
}
