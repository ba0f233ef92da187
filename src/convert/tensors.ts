/** Which tensors a converted checkpoint has, and where each comes from. */
import { ggufNaming } from "../checkpoint/gguf_names.ts";
import { folderNaming, isMediaTensor, modulePath } from "../checkpoint/names.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import type { RawTensor, WeightTensor } from "../checkpoint/tensor.ts";
import { weightsOf } from "../engine/weights.ts";
import type { AffineFormat } from "./affine.ts";
import { fitting, type Recipe } from "./recipe.ts";

/** Rows of a weight of the source that become a module of their own. */
export interface Part {
  weight: WeightTensor;
  /** in rows of all leading dimensions together: `count` rows from `first` on, then again every `stride` rows */ first:
    number;
  count: number;
  stride: number;
}

/** One tensor, or the three of a quantised module. */
export type Output =
  | {
    kind: "quantised";
    /** name without `.weight` */ module: string;
    shape: number[];
    part: Part;
    format: AffineFormat;
  }
  | { kind: "rounded"; name: string; shape: number[]; part: Part } // to bf16
  | { kind: "vector"; name: string; weight: WeightTensor; /** added to each number */ shift: number }
  | {
    kind: "copied";
    name: string;
    tensor: RawTensor; /** from [C', C, …] to [C', …, C] */
    channelsLast: boolean;
  };

/** What will be written, and the format of each module where it is not the usual one. */
export interface OutputPlan {
  outputs: Output[];
  /** `quantization` of `config.json` without the defaults: by module name */ overrides: Record<
    string,
    AffineFormat | false
  >;
}

/**
 * Plans a conversion. Text matrices are quantised as the recipe says (MLX has its embeddings quantised too); vectors, and
 * the vision and audio parts, stay as they are but for the order of convolution axes. `normOffset` is what the written
 * config says that norms lack.
 */
export function planOutputs(
  checkpoint: Checkpoint,
  recipe: Recipe,
  base: AffineFormat,
  normOffset: number,
): OutputPlan {
  const { config, tensors } = checkpoint;
  const naming = checkpoint.metadata === null ? folderNaming(tensors.keys()) : ggufNaming(tensors.keys());
  const weights = checkpoint.weights();
  const outputs: Output[] = [];
  const overrides: OutputPlan["overrides"] = {};
  const textOnly = config.modelType.endsWith("_text");
  const nameOf = (path: string) =>
    path.startsWith("lm_head")
      ? `${textOnly ? "" : "language_model."}${path}`
      : `${textOnly ? "" : "language_model."}model.${path}`;
  const add = (path: string, shape: number[], part: Part) => {
    const isHead = weights.lmHead === part.weight;
    const wanted = recipe({ path, layers: config.layers.length, isHead });
    const format = wanted && fitting(wanted, shape.at(-1)!);
    const module = nameOf(path);
    if (format === false) {
      overrides[module] = false;
      outputs.push({ kind: "rounded", name: `${module}.weight`, shape, part });
      return;
    }
    if (format.bits !== base.bits || format.groupSize !== base.groupSize) overrides[module] = format;
    outputs.push({ kind: "quantised", module, shape, part, format });
  };
  for (const weight of weightsOf(weights)) {
    const path = naming.pathOf(weight.name);
    const { shape } = weight;
    if (shape.length === 1) {
      // Writers of GGUF store norms as they are applied.
      const shift = path.endsWith("norm.weight") ? config.normWeightOffset - normOffset : 0;
      outputs.push({ kind: "vector", name: nameOf(path), weight, shift });
      continue;
    }
    const rows = shape.slice(0, -1).reduce((product, size) => product * size, 1);
    const whole: Part = { weight, first: 0, count: rows, stride: rows };
    const layer = path.replace(/experts\.(gate_up_proj|down_proj)$/, "");
    if (path.endsWith("experts.gate_up_proj")) {
      const [experts, both, columns] = shape;
      const half = { weight, count: both / 2, stride: both };
      add(`${layer}experts.switch_glu.gate_proj`, [experts, both / 2, columns], { ...half, first: 0 });
      add(`${layer}experts.switch_glu.up_proj`, [experts, both / 2, columns], { ...half, first: both / 2 });
    } else if (path.endsWith("experts.down_proj")) add(`${layer}experts.switch_glu.down_proj`, shape, whole);
    else add(path.replace(/\.weight$/, ""), shape, whole);
  }
  for (const tensor of tensors.values()) {
    if (!isMediaTensor(tensor.name)) continue;
    // One writer keeps convolutions as [C', C, …], the other as [C', …, C].
    const convolution = /conv(1d)?\.weight$/.test(tensor.name) && tensor.shape.length > 2;
    const turned = convolution && isChannelsSecond(tensor.shape);
    outputs.push({ kind: "copied", name: modulePath(tensor.name), tensor, channelsLast: turned });
  }
  return { outputs, overrides };
}

/** Numbers of an output's matrix or vector. */
export function numbersOf(output: Output): number {
  const shape = output.kind === "vector"
    ? output.weight.shape
    : output.kind === "copied"
    ? output.tensor.shape
    : output.shape;
  return shape.reduce((product, size) => product * size, 1);
}

/** Kernels are square, so [C', C, k, k] is told from [C', k, k, C] by its equal end; in one dimension C is 1. */
function isChannelsSecond(shape: readonly number[]): boolean {
  return shape.length === 4 ? shape[2] === shape[3] && shape[1] !== shape[2] : shape[1] === 1;
}
