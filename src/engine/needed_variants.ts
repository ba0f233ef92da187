/** What a model will ask of a device, so that a GPU can be checked before it is used. */
import { DECODE_ROWS } from "../schedule/dispatches.ts";
import { FIRST_TOWER_WEIGHTS } from "../schedule/tower.ts";
import { towerPlan } from "../schedule/tower_plan.ts";
import { unplacedPlan } from "../schedule/unplaced.ts";
import { variantsOf } from "../schedule/variants.ts";
import type { Internals, LoadSettings } from "./load_settings.ts";
import type { ReadModel } from "./read_model.ts";
import { layOutWeights } from "./weights.ts";

/** Every variant of an op that runs of this model and of its towers may need. */
export function neededVariants(
  model: ReadModel,
  { kvCache }: Pick<LoadSettings, "kvCache">,
  { fuse }: Pick<Internals, "fuse">,
): Set<string> {
  const { checkpoint: { config, files }, weights, towerWeights, clips, takesMedia } = model;
  const textOps = (["prefill", "decode"] as const).flatMap((variant) =>
    unplacedPlan(config, weights, {
      variant,
      rows: DECODE_ROWS,
      kvFormat: kvCache,
      fuse,
      takesMedia: takesMedia && variant === "prefill",
    }).plan.ops
  );
  const places = { ...layOutWeights(towerWeights, files, FIRST_TOWER_WEIGHTS, 1), clips };
  const options = { limits: { rows: 32, out_rows: 16 }, exact: true };
  const towerOps = (["vision", "audio"] as const).flatMap((part) =>
    towerWeights[part] === null ? [] : towerPlan(part, config, towerWeights, places, options).ops
  );
  return variantsOf([...textOps, ...towerOps]);
}
