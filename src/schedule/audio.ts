/**
 * The conformer of the `gemma4` class as a plan. Rows are pairs of mel frames, output rows the frames after both
 * subsamplings. Inputs: `frames` f32 [rows, 2 · 128], and what counts: `valid` u32 [rows, 2] of frames, `valid1` u32 [rows, 1]
 * after the first subsampling, `valid2` u32 [out_rows, 1] after the second.
 */
import type { AudioTowerConfig } from "../checkpoint/config_media.ts";
import {
  type AudioFeedforwardWeights,
  type AudioLayerWeights,
  type AudioTowerWeights,
  MEL_BINS,
} from "../checkpoint/towers.ts";
import type { Tensor } from "./tensor.ts";
import { TowerBuilder, type TowerPlan, type TowerPlanOptions, type TowerWeightPlaces } from "./tower.ts";

/** Of the norms around feed-forward parts and attention, whatever the config says. */
const EPS = 1e-6;

/** Builds the plan. */
export function audioPlan(
  config: AudioTowerConfig,
  weights: AudioTowerWeights,
  places: TowerWeightPlaces,
  options: TowerPlanOptions,
): TowerPlan {
  const t = new TowerBuilder(options, places, EPS);
  const frames = t.input("frames", ["rows", 2 * MEL_BINS], "f32");
  const valid = t.input("valid", ["rows", 2], "u32");
  const valid1 = t.input("valid1", ["rows", 1], "u32");
  const valid2 = t.input("valid2", ["out_rows", 1], "u32");
  const [first, second] = weights.subsample;
  const [C1, C2] = config.subsamplingChannels;
  const { rmsNormEps: eps } = config;

  const halved = t.fresh("halved", "rows", MEL_BINS / 2 * C1);
  t.add({
    kind: "subsample",
    x: frames,
    valid,
    weight: t.tensor(first.weight),
    norm: t.tensor(first.norm),
    y: halved,
    bins: MEL_BINS,
    framesPerRow: 2,
    channelsLast: first.channelsLast,
    eps,
  });
  const quartered = t.fresh("quartered", "out_rows", MEL_BINS / 4 * C2);
  t.add({
    kind: "subsample",
    x: halved,
    valid: valid1,
    weight: t.tensor(second.weight),
    norm: t.tensor(second.norm),
    y: quartered,
    bins: MEL_BINS / 2,
    framesPerRow: 1,
    channelsLast: second.channelsLast,
    eps,
  });
  let h = t.linear("subsampled", { weight: weights.input, clip: null }, { x: quartered });
  weights.layers.forEach((layer, index) => (h = addLayer(t, config, layer, index, valid2, h)));
  const { weight, bias } = weights.output;
  const output = t.linear("output", { weight, clip: null }, { x: h, bias });
  const normed = t.norm("projection_norm", output, null, eps);
  const soft = t.linear("soft_tokens", { weight: weights.projection, clip: null }, { x: normed });
  return t.finish(output, soft);
}

function addLayer(
  t: TowerBuilder,
  config: AudioTowerConfig,
  weights: AudioLayerWeights,
  index: number,
  valid: Tensor,
  x: Tensor,
): Tensor {
  const at = (name: string) => `layers.${index}.${name}`;
  const { hiddenSize: N, heads, contextLeft, contextRight, chunkSize, rmsNormEps } = config;
  const headDim = N / heads;
  const h = addFeedforward(t, config, weights.feedforward1, at("ff1"), index, x);

  const preNorm = t.tensor(weights.preAttentionNorm);
  const q = t.linear(at("q"), weights.q, { x: h, preNorm, layer: index });
  const k = t.linear(at("k"), weights.k, { x: h, preNorm, layer: index });
  const v = t.linear(at("v"), weights.v, { x: h, preNorm, layer: index });
  const attended = t.fresh(at("attention"), "out_rows", N);
  t.add({
    kind: "local_attention",
    q,
    k,
    v,
    perDimScale: t.tensor(weights.perDimScale),
    relative: t.tensor(weights.relative),
    valid,
    y: attended,
    heads,
    headDim,
    left: contextLeft - 1,
    right: contextRight,
    // The table's middle stands for the farthest key; it is the distance itself where chunk and context agree.
    shift: Math.floor((chunkSize + contextLeft - 1 + contextRight) / 2) - (contextLeft - 1),
    qScale: headDim ** -0.5 / Math.LN2,
    kScale: Math.log(1 + Math.E) / Math.LN2,
    cap: config.logitCap,
    layer: index,
  });
  const post = t.linear(at("post"), weights.post, { x: attended, layer: index });
  const h2 = t.sum(at("h_attention"), h, t.norm(at("post_norm"), post, weights.postAttentionNorm));

  const start = t.linear(at("start"), weights.start, {
    x: t.norm(at("conv_norm"), h2, weights.preConvNorm, rmsNormEps),
    layer: index,
  });
  const convolved = t.fresh(at("conv"), "out_rows", N);
  t.add({
    kind: "light_conv",
    x: start,
    weight: t.tensor(weights.depthwise),
    norm: t.tensor(weights.convNorm),
    y: convolved,
    eps: rmsNormEps,
    layer: index,
  });
  const end = t.linear(at("end"), weights.end, { x: convolved, layer: index });
  const h3 = t.sum(at("h_conv"), h2, end);
  const h4 = addFeedforward(t, config, weights.feedforward2, at("ff2"), index, h3);
  return t.endLayer(t.norm(at("out"), h4, weights.outNorm));
}

/** x + residualWeight · rms_norm(down · silu(up · rms_norm(x))). */
function addFeedforward(
  t: TowerBuilder,
  config: AudioTowerConfig,
  { preNorm, up, down, postNorm }: AudioFeedforwardWeights,
  name: string,
  layer: number,
  x: Tensor,
): Tensor {
  const wide = t.linear(`${name}.up`, up, {
    x,
    preNorm: t.tensor(preNorm),
    epilogue: { kind: "silu" },
    layer,
  });
  const narrow = t.linear(`${name}.down`, down, { x: wide, layer });
  return t.sum(`${name}.h`, x, t.norm(`${name}.norm`, narrow, postNorm), config.residualWeight);
}
