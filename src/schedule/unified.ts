/**
 * The encoder-free vision and audio of the `gemma4_unified` class as plans. Rows are soft tokens.
 * Inputs of vision: `pixels` f32 [rows, (k · patch)² · 3] from 0 to 1 and `positions` u32 [rows, 2]; of audio: `samples`
 * f32 [rows, frame].
 */
import type { AudioFramesConfig, VisionPatchesConfig } from "../checkpoint/config_media.ts";
import type { AudioFramesWeights, VisionPatchesWeights } from "../checkpoint/towers.ts";
import type { WeightTensor } from "../checkpoint/tensor.ts";
import type { Tensor } from "./tensor.ts";
import { TowerBuilder, type TowerPlan, type TowerPlanOptions, type TowerWeightPlaces } from "./tower.ts";

const LAYER_NORM_EPS = 1e-5;

/** Patches to soft tokens. */
export function unifiedVisionPlan(
  config: VisionPatchesConfig,
  weights: VisionPatchesWeights,
  places: TowerWeightPlaces,
  options: TowerPlanOptions,
): TowerPlan {
  const t = new TowerBuilder(options, places, config.rmsNormEps);
  const { positionRows: count, patchSize, poolingKernelSize, embedDim } = config;
  const pixels = t.input("pixels", ["rows", (patchSize * poolingKernelSize) ** 2 * 3], "f32");
  const positions = t.input("positions", ["rows", 2], "u32");
  const layerNorm = (
    name: string,
    x: Tensor,
    { weight, bias }: { weight: WeightTensor; bias: WeightTensor },
  ) => {
    const y = t.fresh(name, "rows", x.shape[1] as number);
    t.add({
      kind: "layer_norm",
      x,
      weight: t.tensor(weight),
      bias: t.tensor(bias),
      y,
      eps: LAYER_NORM_EPS,
    });
    return y;
  };
  const dense = t.linear("dense", { weight: weights.dense.weight, clip: null }, {
    x: layerNorm("norm1", pixels, weights.norm1),
    bias: weights.dense.bias,
  });
  const placed = t.fresh("placed", "rows", embedDim);
  t.add({
    kind: "add_positions",
    x: layerNorm("norm2", dense, weights.norm2),
    table: t.tensor(weights.positions),
    positions,
    y: placed,
    count,
    step: 2,
    second: 1,
  });
  const tower = layerNorm("position_norm", placed, weights.positionNorm);
  return t.finish(tower, t.project(tower, weights.projection));
}

/** Raw frames to soft tokens. The tower gives the normed frames. */
export function unifiedAudioPlan(
  config: AudioFramesConfig,
  weights: AudioFramesWeights,
  places: TowerWeightPlaces,
  options: TowerPlanOptions,
): TowerPlan {
  const t = new TowerBuilder(options, places, config.rmsNormEps);
  const samples = t.input("samples", ["rows", config.frameSize], "f32");
  const normed = t.norm("normed", samples, null);
  const soft = t.linear("soft_tokens", { weight: weights.projection, clip: null }, { x: normed });
  return t.finish(normed, soft);
}
