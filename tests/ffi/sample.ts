/**
 * Four small plans that together have every op kind, their buffers and their input: a layer as the fused schedule makes it,
 * the elementary ops in a row, the ops of experts and drafters, and those of towers. The numbers mean nothing; every extent is different where it can be.
 */
import { encodeInput, type RunInput } from "../../src/engine/input.ts";
import { type Plan, PlanBuilder, tensorBytes } from "../../src/schedule/plan.ts";
import type { Format, Tensor } from "../../src/schedule/tensor.ts";
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";

const LIMITS = { rows: 4, out_rows: 3, sequences: 2, pages: 12 };
const VOCABULARY = 40;
const HIDDEN = 64;
const HEADS = 2;
const KV_HEADS = 1;
const HEAD_DIM = 32;
const POOL_PAGES = 6;
const F32: Format = { kind: "f32" };
const AFFINE: Format = { kind: "affine", bits: 4, group: 32 };

/** Places weights one after another in buffer 1, and fills them with small pseudo-random numbers. */
class Weights {
  bytes = 0;
  #fills: ((bytes: Uint8Array<ArrayBuffer>) => void)[] = [];
  #seed = 1;

  add(name: string, format: Format, shape: number[]): Tensor {
    if (!("group" in format)) return this.#place(name, format, shape);
    const groups = [...shape.slice(0, -1), shape[shape.length - 1] / format.group];
    const scales = this.#place(`${name}.scales`, { kind: format.kind === "affine" ? "bf16" : "i8" }, groups);
    if (format.kind !== "affine") return Object.assign(this.#place(name, format, shape), { scales });
    const biases = this.#place(`${name}.biases`, { kind: "bf16" }, groups);
    return Object.assign(this.#place(name, format, shape), { scales, biases });
  }

  filled(): Uint8Array<ArrayBuffer> {
    const bytes = new Uint8Array(this.bytes);
    for (const fill of this.#fills) fill(bytes);
    return bytes;
  }

  #place(name: string, format: Format, shape: number[]): Tensor {
    const tensor: Tensor = { name, format, shape, buffer: 1, offset: this.bytes };
    const size = tensorBytes(tensor, LIMITS);
    this.bytes += Math.ceil(size / 64) * 64;
    this.#fills.push((bytes) => {
      const view = new DataView(bytes.buffer, tensor.offset, size);
      for (let at = 0; at + 4 <= size; at += 4) {
        this.#seed = Math.imul(this.#seed, 1664525) + 1013904223 >>> 0;
        const value = (this.#seed >>> 8) / 2 ** 25;
        if (format.kind === "f32") view.setFloat32(at, value, true);
        else if (format.kind === "bf16") view.setUint32(at, 0x3c003c00, true); // 1/128 twice
        else if (format.kind === "gguf") view.setUint32(at, 0x24242424, true); // scales of 1/60
        else if (format.kind === "i8") view.setUint32(at, 0x78787878, true); // scale bytes of 2^-7
        else view.setUint32(at, this.#seed, true);
      }
    });
    return tensor;
  }
}

/** A plan with the bytes of its weights. Buffers: arena, weights, page pool. */
export interface Sample {
  plan: Plan;
  weights: Uint8Array<ArrayBuffer>;
}

/** The fused ops: embed, per_layer_inputs, linear (every epilogue and prologue), attention, gather, candidates. */
export function fusedSample(): Sample {
  const b = new PlanBuilder(LIMITS);
  const w = new Weights();
  const weights = b.buffer("weights", 0, false);
  const kv = pool(b);
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
  b.buffers[weights].bytes = w.bytes;
  return {
    plan: b.finish({ groups: 2, vocabularySize: VOCABULARY, exact: true, reuse: false }),
    weights: w.filled(),
  };
}

/** The elementary ops: rms_norm, add, gelu_mul, softcap, rope, kv_write, attend. */
export function elementarySample(): Sample {
  const b = new PlanBuilder(LIMITS);
  const w = new Weights();
  const weights = b.buffer("weights", 0, false);
  const kv = pool(b);
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
  b.buffers[weights].bytes = w.bytes;
  return {
    plan: b.finish({ groups: 2, vocabularySize: VOCABULARY, exact: true, reuse: false }),
    weights: w.filled(),
  };
}

const EXPERTS = 5;
const CHOSEN = 2;
const WIDTH = 32;

/** Experts in their fused and their elementary ops, then the ends of a drafter. */
export function expertSample(): Sample {
  const b = new PlanBuilder(LIMITS);
  const w = new Weights();
  const weights = b.buffer("weights", 0, false);
  pool(b); // so that every sample has the same buffers
  const activation = (name: string, columns: number) => b.activation(name, ["rows", columns]);
  const ids = (name: string) => b.activation(name, ["rows", CHOSEN], { kind: "u32" });
  const x = activation("x", HIDDEN);
  const table = w.add("table", AFFINE, [VOCABULARY, HIDDEN]);
  b.add({ kind: "embed", table, y: x, scale: 1.5 });
  const [experts, shares] = [ids("experts"), activation("shares", CHOSEN)];
  const perExpertScale = w.add("per_expert_scale", F32, [EXPERTS]);
  b.add({
    kind: "route",
    x,
    scale: w.add("scale", F32, [HIDDEN]),
    projection: w.add("projection", AFFINE, [EXPERTS, HIDDEN]),
    perExpertScale,
    experts,
    y: shares,
    eps: 1e-6,
    inScale: 0.125,
  });
  const gateUp = w.add("gate_up", AFFINE, [EXPERTS, 2 * WIDTH, HIDDEN]);
  const down = w.add("down", AFFINE, [EXPERTS, HIDDEN, WIDTH]);
  const preNorm = w.add("pre_norm", F32, [HIDDEN]);
  const [gated, split] = [activation("gated", CHOSEN * WIDTH), activation("split", CHOSEN * WIDTH)];
  b.add({ kind: "expert_gate_up", x, preNorm, experts, weights: [gateUp], y: gated, eps: 1e-6 });
  const halves = ["gate", "up"].map((name) => w.add(name, F32, [EXPERTS, WIDTH, HIDDEN]));
  b.add({ kind: "expert_gate_up", x, experts, weights: halves, y: split, eps: 0 });
  const sum = activation("sum", HIDDEN);
  b.add({ kind: "expert_down", x: gated, experts, shares, weight: down, y: sum });

  const logits = activation("router_logits", EXPERTS);
  const projection = w.add("router", F32, [EXPERTS, HIDDEN]);
  b.add({ kind: "linear", x, weights: [projection], epilogue: { kind: "none" }, y: logits, eps: 0 });
  const [others, otherShares] = [ids("others"), activation("other_shares", CHOSEN)];
  b.add({ kind: "top_k", logits, perExpertScale, experts: others, y: otherShares });
  const up = activation("up_products", CHOSEN * WIDTH);
  b.add({ kind: "expert_linear", x, experts: others, weight: gateUp, firstRow: WIDTH, y: up });
  const products = activation("products", CHOSEN * HIDDEN);
  b.add({ kind: "expert_linear", x: split, experts: others, weight: down, firstRow: 0, y: products });
  const otherSum = activation("other_sum", HIDDEN);
  b.add({ kind: "expert_sum", x: products, shares: otherShares, y: otherSum });
  const both = activation("both", HIDDEN);
  const [aNorm, bNorm] = ["a_norm", "b_norm"].map((name) => w.add(name, F32, [HIDDEN]));
  b.add({ kind: "add_norms", a: sum, aNorm, b: otherSum, bNorm, y: both, eps: 1e-6 });

  const input = activation("draft_input", 2 * HIDDEN);
  b.add({ kind: "draft_input", table, state: both, y: input, scale: 8 });
  const scores = activation("scores", 8);
  const centroids = w.add("centroids", F32, [8, 2 * HIDDEN]);
  b.add({ kind: "linear", x: input, weights: [centroids], epilogue: { kind: "none" }, y: scores, eps: 0 });
  const drafted = activation("drafted", VOCABULARY);
  b.add({
    kind: "centroid_head",
    x: both,
    norm: preNorm,
    scores,
    // bytes that are no token ids for the most part
    ordering: w.add("ordering", { kind: "u32" }, [8, VOCABULARY / 8]),
    table,
    y: drafted,
    topK: 3,
    eps: 1e-6,
  });
  b.output(drafted);
  b.buffers[weights].bytes = w.bytes;
  return {
    plan: b.finish({ groups: 2, vocabularySize: VOCABULARY, exact: false, reuse: false }),
    weights: w.filled(),
  };
}

/** The ops of towers, and a text's beginning that takes soft tokens and knows blocks. */
export function towerSample(): Sample {
  const b = new PlanBuilder(LIMITS);
  const w = new Weights();
  const weights = b.buffer("weights", 0, false);
  const kv = pool(b);
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
  b.buffers[weights].bytes = w.bytes;
  return {
    plan: b.finish({ groups: 2, vocabularySize: VOCABULARY, exact: true, reuse: false }),
    weights: w.filled(),
  };
}

/** A page pool of two layers in group 1; the ops use the second layer. */
function pool(b: PlanBuilder) {
  const shape = [POOL_PAGES, 4, KV_HEADS, 32, HEAD_DIM];
  const pages: Tensor = { name: "pages", format: F32, shape, buffer: 2, offset: 0 };
  b.buffer("pages", tensorBytes(pages, LIMITS), true);
  return { pages, layer: 1, group: 1 };
}

/** Three rows of two sequences, with everything that an input block can carry. */
export function sampleInput(): RunInput {
  return {
    rows: [
      { token: 5, position: 0, sequence: 0, rowClass: "prefill" },
      { token: 39, position: 1, sequence: 0, rowClass: "prefill" },
      { token: 0, position: 40, sequence: 1, rowClass: "decode" },
    ],
    outputs: [
      {
        row: 1,
        adjustments: [{ id: 2, multiply: 0.5, add: 0 }, { id: 39, multiply: 1, add: -1 }],
        temperature: 0.7,
      },
      { row: 2, mask: new Uint32Array([0xffff, 0x1]) },
    ],
    sequences: [
      [{ first: 0, pages: [] }, { first: 0, pages: [3] }],
      [{ first: 0, pages: [1, 2] }, { first: 0, pages: [5, 0] }],
    ],
    groups: 2,
    vocabularySize: VOCABULARY,
    outputMask: 1,
  };
}

/** Bytes of output 0 for `sampleInput`: logits of two rows, or attended of three. */
export function outputBytes(sample: Sample): number {
  const [rows, columns] = sample.plan.outputs[0].shape;
  return (rows === "rows" ? 3 : 2) * (columns as number) * 4;
}

/** The input block of `sampleInput`. */
export function sampleBlock(): Uint8Array<ArrayBuffer> {
  return encodeInput(sampleInput());
}

/** Buffers for a sample, the weights filled in. */
export function sampleBuffers(device: Device, { plan, weights }: Sample): Buffer[] {
  const buffers = plan.buffers.map((buffer) => device.createBuffer(buffer.bytes));
  buffers[1].write(0, weights);
  return buffers;
}
