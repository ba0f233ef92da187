/** Layers of text: as the fused schedule makes them, and the elementary ops in a row. */
import {
  AFFINE,
  beginSample,
  F32,
  finishSample,
  HEAD_DIM,
  HEADS,
  HIDDEN,
  KV_HEADS,
  type Sample,
  VOCABULARY,
} from "./parts.ts";

/** The fused ops: embed, per_layer_inputs, linear (every epilogue and prologue), attention, gather, candidates. */
export function fusedSample(): Sample {
  const { b, w, kv } = beginSample();
  const [x, h] = [b.activation("x", ["rows", HIDDEN]), b.activation("h", ["rows", HIDDEN])];
  const table = w.add("table", AFFINE, [VOCABULARY, HIDDEN]);
  b.add({ kind: "embed", table, y: x, scale: 8 });
  const [projected, ple] = [b.activation("projected", ["rows", 64]), b.activation("ple", ["rows", 64])];
  const plain = { kind: "linear", weights: [], epilogue: { kind: "none" }, eps: 1e-6 } as const;
  b.add({ ...plain, x, weights: [w.add("w_ple", AFFINE, [64, HIDDEN])], y: projected });
  b.add({
    kind: "per_layer_inputs",
    projected,
    table: w.add("ple_table", AFFINE, [VOCABULARY, 64]),
    norm: w.add("ple_norm", F32, [32]),
    y: ple,
    slice: 32,
    eps: 1e-6,
    projectionScale: 0.5,
    tableScale: 2,
    outScale: 0.7,
  });
  const qkv = b.activation("qkv", ["rows", (HEADS + 2 * KV_HEADS) * HEAD_DIM]);
  b.add({
    ...plain,
    x,
    preNorm: w.add("pre_norm", F32, [HIDDEN]),
    weights: [
      w.add("q", AFFINE, [HEADS * HEAD_DIM, HIDDEN]),
      w.add("k", { kind: "bf16" }, [KV_HEADS * HEAD_DIM, HIDDEN]),
      w.add("v", { kind: "gguf", type: "q5_0" }, [KV_HEADS * HEAD_DIM, HIDDEN]),
    ],
    biases: [undefined, w.add("k_bias", F32, [KV_HEADS * HEAD_DIM])],
    y: qkv,
    layer: 0,
  });
  const attended = b.activation("attended", ["rows", HEADS * HEAD_DIM]);
  b.add({
    kind: "attention",
    qkv,
    qNorm: w.add("q_norm", F32, [HEAD_DIM]),
    kNorm: w.add("k_norm", F32, [HEAD_DIM]),
    kv,
    y: attended,
    heads: HEADS,
    kvHeads: KV_HEADS,
    headDim: HEAD_DIM,
    ownsKv: true,
    keysAreValues: false,
    normValues: true,
    window: 20,
    rope: { theta: 10000, rotatedPairs: 8, positionScale: 1 },
    eps: 1e-6,
    scoreScale: 1,
    layer: 0,
  });
  const [up, gated] = [b.activation("up", ["rows", 96]), b.activation("gated", ["rows", 64])];
  b.add({
    ...plain,
    x: attended,
    residual: x,
    postNorm: w.add("post_norm", F32, [HIDDEN]),
    scalar: w.add("scalar", F32, [1]),
    hOut: h,
    preNorm: w.add("pre_norm2", F32, [HIDDEN]),
    weights: [w.add("gate", AFFINE, [96, HIDDEN]), w.add("up", AFFINE, [96, HIDDEN])],
    epilogue: { kind: "geglu" },
    y: up,
  });
  b.add({
    ...plain,
    x: h,
    weights: [w.add("ple_gate", { kind: "mxfp4", group: 32 }, [32, HIDDEN])],
    epilogue: { kind: "gelu_mul", other: ple, column: 32 },
    y: b.activation("gated_half", ["rows", 32]),
  });
  b.add({ ...plain, x: up, weights: [w.add("down", AFFINE, [64, 96])], y: gated });
  const [last, logits] = [
    b.activation("last", ["out_rows", 64]),
    b.activation("logits", ["out_rows", VOCABULARY]),
  ];
  b.add({ kind: "gather", x: gated, y: last });
  b.add({
    ...plain,
    x: last,
    weights: [w.add("head", AFFINE, [VOCABULARY, HIDDEN])],
    epilogue: { kind: "softcap", cap: 30 },
    y: logits,
  });
  const ids = b.activation("ids", ["out_rows", 256], { kind: "u32" });
  const values = b.activation("values", ["out_rows", 256]);
  const stats = b.activation("stats", ["out_rows", 4]);
  b.add({ kind: "candidates", logits, ids, values, stats });
  for (const tensor of [logits, ids, values, stats, h]) b.output(tensor);
  return finishSample(b, w, true);
}

/** The elementary ops: rms_norm, add, gelu_mul, softcap, rope, kv_write, attend. */
export function elementarySample(): Sample {
  const { b, w, kv } = beginSample();
  const activation = (name: string, columns: number) => b.activation(name, ["rows", columns]);
  const [x, normed, sum, capped] = ["x", "normed", "sum", "capped"].map((name) => activation(name, HIDDEN));
  b.add({ kind: "embed", table: w.add("table", F32, [VOCABULARY, HIDDEN]), y: x, scale: 1.5 });
  const weight = w.add("norm", F32, [HEAD_DIM]);
  b.add({ kind: "rms_norm", x, weight, y: normed, group: HEAD_DIM, eps: 1e-6, inScale: 1 });
  b.add({ kind: "add", a: x, b: normed, scalar: w.add("scalar", F32, [1]), y: sum, aScale: 1, bScale: 0.5 });
  b.add({ kind: "softcap", x: sum, y: capped, cap: 2 });
  const half = activation("half", HEAD_DIM);
  const narrow = activation("narrow", HEAD_DIM);
  b.add({
    kind: "linear",
    x: capped,
    weights: [w.add("narrow", F32, [HEAD_DIM, HIDDEN])],
    epilogue: { kind: "none" },
    y: narrow,
    eps: 0,
  });
  b.add({ kind: "gelu_mul", a: narrow, b: capped, column: 16, y: half });
  const rotated = activation("rotated", HIDDEN);
  const rope = { theta: 10000, rotatedPairs: 16, positionScale: 0.5 };
  b.add({ kind: "rope", x: capped, y: rotated, heads: HEADS, headDim: HEAD_DIM, rope });
  b.add({ kind: "kv_write", k: half, v: narrow, kv, kvHeads: KV_HEADS, headDim: HEAD_DIM });
  const attended = activation("attended", HIDDEN);
  b.add({
    kind: "attend",
    q: rotated,
    kv,
    y: attended,
    heads: HEADS,
    kvHeads: KV_HEADS,
    headDim: HEAD_DIM,
    window: null,
    scoreScale: 0.2,
  });
  b.output(attended);
  return finishSample(b, w, true);
}
