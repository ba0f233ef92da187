/**
 * The vision tower of the `gemma4` class as a plan. Rows are patches, output rows soft tokens. Inputs: `pixels`
 * f32 [rows, patch² · 3], each 2 · value - 1; `positions` u32 [rows, 2]; `members` u32 [out_rows, k²], the patches of each
 * soft token.
 */
import type { VisionTowerConfig } from "../checkpoint/config_media.ts";
import type { VisionLayerWeights, VisionTowerWeights } from "../checkpoint/towers.ts";
import type { Tensor } from "./tensor.ts";
import { TowerBuilder, type TowerPlan, type TowerPlanOptions, type TowerWeightPlaces } from "./tower.ts";

/** Builds the plan. */
export function visionPlan(
  config: VisionTowerConfig,
  weights: VisionTowerWeights,
  places: TowerWeightPlaces,
  options: TowerPlanOptions,
): TowerPlan {
  const t = new TowerBuilder(options, places, config.rmsNormEps);
  const { hiddenSize: N, positionRows: count, poolingKernelSize: k } = config;
  const pixels = t.input("pixels", ["rows", config.patchSize ** 2 * 3], "f32");
  const positions = t.input("positions", ["rows", 2], "u32");
  const members = t.input("members", ["out_rows", k * k], "u32");

  const patches = t.linear("patches", { weight: weights.patches, clip: null }, { x: pixels });
  const embedded = t.fresh("embedded", "rows", N);
  t.add({
    kind: "add_positions",
    x: patches,
    table: t.tensor(weights.positions),
    positions,
    y: embedded,
    count,
    step: 1,
    second: count,
  });
  let h = embedded;
  weights.layers.forEach((layer, index) => (h = addLayer(t, config, layer, index, positions, h)));

  const pooled = t.fresh("pooled", "out_rows", N);
  t.add({
    kind: "pool",
    x: h,
    members,
    bias: weights.standardize ? t.tensor(weights.standardize.bias) : undefined,
    scale: weights.standardize ? t.tensor(weights.standardize.scale) : undefined,
    y: pooled,
    factor: Math.sqrt(N) / (k * k),
  });
  return t.finish(pooled, t.project(pooled, weights.projection));
}

function addLayer(
  t: TowerBuilder,
  config: VisionTowerConfig,
  weights: VisionLayerWeights,
  index: number,
  positions: Tensor,
  h: Tensor,
): Tensor {
  const { hiddenSize: N, heads, kvHeads, headDim } = config;
  const at = (name: string) => `layers.${index}.${name}`;
  const preNorm = t.tensor(weights.inputNorm);
  const q = t.linear(at("q"), weights.q, { x: h, preNorm, layer: index });
  const k = t.linear(at("k"), weights.k, { x: h, preNorm, layer: index });
  const v = t.linear(at("v"), weights.v, { x: h, preNorm, layer: index });
  const attended = t.fresh(at("attention"), "rows", heads * headDim);
  t.add({
    kind: "patch_attention",
    q,
    k,
    v,
    qNorm: t.tensor(weights.qNorm),
    kNorm: t.tensor(weights.kNorm),
    positions,
    y: attended,
    heads,
    kvHeads,
    headDim,
    theta: config.ropeTheta,
    eps: config.rmsNormEps,
    scoreScale: 1,
    layer: index,
  });
  const output = t.linear(at("o"), weights.o, { x: attended, layer: index });
  const middle = t.fresh(at("h_attention"), "rows", N);
  const gated = t.gated(at("mlp"), weights.gate, weights.up, {
    x: output,
    residual: h,
    postNorm: t.tensor(weights.postAttentionNorm),
    hOut: middle,
    preNorm: t.tensor(weights.preFeedforwardNorm),
    layer: index,
  });
  const down = t.linear(at("down"), weights.down, { x: gated, layer: index });
  return t.endLayer(middle, t.norm(at("down_norm"), down, weights.postFeedforwardNorm));
}
