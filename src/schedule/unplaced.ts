/** The plan of a model whose weights have no place on a device yet: for figures and for what it will ask of a device. */
import type { ModelConfig } from "../checkpoint/config.ts";
import type { TextWeights } from "../checkpoint/weights.ts";
import { firstWeightBuffer, type TextPlan, textPlan } from "./text.ts";
import { type KvFormat, pageGroups } from "./groups.ts";
import type { Tensor } from "./tensor.ts";
import { planTensor } from "./weight.ts";

/** Size and kind of the run. */
export interface UnplacedOptions {
  variant: "prefill" | "decode";
  /** tokens in the forward at most */ rows: number;
  kvFormat: KvFormat;
  /** false: the smallest ops */ fuse?: boolean;
  /** soft tokens take the place of embeddings */ takesMedia?: boolean;
}

/** The plan, and the tensor of every weight in it. */
export function unplacedPlan(
  config: ModelConfig,
  weights: TextWeights,
  { variant, rows, kvFormat, fuse, takesMedia }: UnplacedOptions,
): { plan: TextPlan; tensors: Tensor[] } {
  const tensors = new Map<object, Tensor>();
  const buffer = firstWeightBuffer(config);
  const plan = textPlan(config, weights, {
    buffers: [{ name: "weights", bytes: 1 }],
    tensor: (weight) => {
      let tensor = tensors.get(weight);
      if (!tensor) tensors.set(weight, tensor = planTensor(weight, () => ({ buffer, offset: 0 })));
      return tensor;
    },
  }, {
    variant,
    limits: { rows, out_rows: rows, sequences: 1, pages: 1 },
    kvFormat,
    kvPages: pageGroups(config).map(() => 1),
    exact: true,
    fuse,
    softRows: takesMedia ? rows : undefined,
  });
  return { plan, tensors: [...tensors.values()] };
}
