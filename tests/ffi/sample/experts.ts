/** The ops of experts and drafters. */
import { AFFINE, beginSample, F32, finishSample, HIDDEN, type Sample, VOCABULARY } from "./parts.ts";

const EXPERTS = 5;
const CHOSEN = 2;
const WIDTH = 32;

/** Experts in their fused and their elementary ops, then the ends of a drafter. */
export function expertSample(): Sample {
  const { b, w } = beginSample();
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
  return finishSample(b, w, false);
}
