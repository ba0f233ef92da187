/** The plan of a model's eyes or ears, of whichever kind they are. */
import type { ModelConfig } from "../checkpoint/config.ts";
import type { TowerWeights } from "../checkpoint/towers.ts";
import { audioPlan } from "./audio.ts";
import type { TowerPlan, TowerPlanOptions, TowerWeightPlaces } from "./tower.ts";
import { unifiedAudioPlan, unifiedVisionPlan } from "./unified.ts";
import { visionPlan } from "./vision.ts";

/** What a plan of a tower is for. */
export type TowerPart = "vision" | "audio";

/** Builds the plan of a part that the model has. */
export function towerPlan(
  part: TowerPart,
  config: Pick<ModelConfig, "vision" | "audio">,
  weights: TowerWeights,
  places: TowerWeightPlaces,
  options: TowerPlanOptions,
): TowerPlan {
  if (part === "vision") {
    const [vision, of] = [config.vision, weights.vision];
    if (vision?.kind === "tower" && of?.kind === "tower") return visionPlan(vision, of, places, options);
    if (vision?.kind === "patches" && of?.kind === "patches") {
      return unifiedVisionPlan(vision, of, places, options);
    }
  } else {
    const [audio, of] = [config.audio, weights.audio];
    if (audio?.kind === "tower" && of?.kind === "tower") return audioPlan(audio, of, places, options);
    if (audio?.kind === "frames" && of?.kind === "frames") {
      return unifiedAudioPlan(audio, of, places, options);
    }
  }
  throw new RangeError(`Config and weights have no ${part} part of one kind.`);
}
