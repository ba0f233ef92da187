/**
 * The weights of the vision and audio parts by role. Shapes: H hidden size of the text, and of a tower N its width, A its
 * heads of D lanes, W its MLP's width.
 */
import { CheckpointError } from "../errors.ts";
import type { ModelConfig } from "./config.ts";
import type { AudioConfig, AudioTowerConfig, VisionConfig, VisionTowerConfig } from "./config_media.ts";
import { openFile, readRange } from "./files.ts";
import type { FileEntry } from "./files.ts";
import { Modules } from "./modules.ts";
import type { FileRange, RawTensor, WeightTensor } from "./tensor.ts";

/** Bounds of a linear as they are stored, one number each. */
export interface StoredClip {
  /** name of the module, for messages */ name: string;
  /** least and largest input, least and largest output */ bounds: [
    StoredNumber,
    StoredNumber,
    StoredNumber,
    StoredNumber,
  ];
}

/** One number of a file. */
export interface StoredNumber {
  dtype: "f32" | "bf16" | "f16";
  range: FileRange;
}

/** A linear that may clamp what goes in and what comes out. */
export interface ClippedLinear {
  weight: WeightTensor;
  clip: StoredClip | null;
}

/** A layer of the vision tower. */
export interface VisionLayerWeights {
  /** [N] */ inputNorm: WeightTensor;
  /** [A·D, N] */ q: ClippedLinear;
  /** [K·D, N] */ k: ClippedLinear;
  /** [K·D, N] */ v: ClippedLinear;
  /** [D] */ qNorm: WeightTensor;
  /** [D] */ kNorm: WeightTensor;
  /** [N, A·D] */ o: ClippedLinear;
  /** [N] */ postAttentionNorm: WeightTensor;
  /** [N] */ preFeedforwardNorm: WeightTensor;
  /** [W, N] */ gate: ClippedLinear;
  /** [W, N] */ up: ClippedLinear;
  /** [N, W] */ down: ClippedLinear;
  /** [N] */ postFeedforwardNorm: WeightTensor;
}

/** The vision tower of the `gemma4` class. */
export interface VisionTowerWeights {
  kind: "tower";
  /** [N, patch² · 3] */ patches: WeightTensor;
  /** [2·P, N]: P rows for x, then P for y */ positions: WeightTensor;
  layers: VisionLayerWeights[];
  /** [N] each, null where soft tokens are not standardised */ standardize: {
    bias: WeightTensor;
    scale: WeightTensor;
  } | null;
  /** [H, N] */ projection: WeightTensor;
}

/** Encoder-free vision of the `gemma4_unified` class; M numbers of a merged patch. */
export interface VisionPatchesWeights {
  kind: "patches";
  /** [M] each */ norm1: { weight: WeightTensor; bias: WeightTensor };
  /** [E, M] and [E] */ dense: { weight: WeightTensor; bias: WeightTensor };
  /** [E] each */ norm2: { weight: WeightTensor; bias: WeightTensor };
  /** [2·P, E]: x and y of position 0, x and y of position 1, … */ positions: WeightTensor;
  /** [E] each */ positionNorm: { weight: WeightTensor; bias: WeightTensor };
  /** [H, E] */ projection: WeightTensor;
}

/** One of the two feed-forward parts of a conformer layer. */
export interface AudioFeedforwardWeights {
  /** [N] */ preNorm: WeightTensor;
  /** [4·N, N] */ up: ClippedLinear;
  /** [N, 4·N] */ down: ClippedLinear;
  /** [N] */ postNorm: WeightTensor;
}

/** A conformer layer. */
export interface AudioLayerWeights {
  feedforward1: AudioFeedforwardWeights;
  feedforward2: AudioFeedforwardWeights;
  /** [N] */ preAttentionNorm: WeightTensor;
  /** [N, N] */ q: ClippedLinear;
  /** [N, N] */ k: ClippedLinear;
  /** [N, N] */ v: ClippedLinear;
  /** [D] */ perDimScale: WeightTensor;
  /** [N, N] */ relative: WeightTensor;
  /** [N, N] */ post: ClippedLinear;
  /** [N] */ postAttentionNorm: WeightTensor;
  /** [N] */ preConvNorm: WeightTensor;
  /** [2·N, N] */ start: ClippedLinear;
  /** [N, k] */ depthwise: WeightTensor;
  /** [N] */ convNorm: WeightTensor;
  /** [N, N] */ end: ClippedLinear;
  /** [N] */ outNorm: WeightTensor;
}

/** A convolution of the subsampling. */
export interface SubsampleWeights {
  /** [C', 9·C] */ weight: WeightTensor;
  /** whether a row of it is [3, 3, C] instead of [C, 3, 3] */ channelsLast: boolean;
  /** [C'] */ norm: WeightTensor;
}

/** The audio tower of the `gemma4` class. */
export interface AudioTowerWeights {
  kind: "tower";
  subsample: [SubsampleWeights, SubsampleWeights];
  /** [N, bins · C'] */ input: WeightTensor;
  layers: AudioLayerWeights[];
  /** [O, N] and [O] */ output: { weight: WeightTensor; bias: WeightTensor };
  /** [H, O] */ projection: WeightTensor;
}

/** Encoder-free audio of the `gemma4_unified` class. */
export interface AudioFramesWeights {
  kind: "frames";
  /** [H, samples of a frame] */ projection: WeightTensor;
}

/** Everything beside the text network. */
export interface TowerWeights {
  vision: VisionTowerWeights | VisionPatchesWeights | null;
  audio: AudioTowerWeights | AudioFramesWeights | null;
  /** names of media tensors that have no known role */ unexpected: string[];
}

/** Mel bins that an audio tower takes. */
export const MEL_BINS = 128;

/**
 * Gives every weight of the vision and audio parts its role. Throws `CheckpointError` as `textWeights`; where a file has no
 * tensor of a part at all, that part is null: the checkpoint's maker left it out.
 */
export function towerWeights(tensors: Iterable<RawTensor>, config: ModelConfig): TowerWeights {
  const modules = new Modules([...tensors], config.quantization, { part: "media" });
  const { vision, audio, hiddenSize: H } = config;
  const weights: TowerWeights = {
    vision: vision && modules.has("embed_vision.embedding_projection")
      ? visionWeights(modules, vision, H)
      : null,
    audio: audio && modules.has("embed_audio.embedding_projection") ? audioWeights(modules, audio, H) : null,
    unexpected: [],
  };
  weights.unexpected = modules.unused();
  return weights;
}

function visionWeights(modules: Modules, config: VisionConfig, H: number): TowerWeights["vision"] {
  const { patchSize, poolingKernelSize, positionRows: P } = config;
  const projection = (width: number) => modules.matrix("embed_vision.embedding_projection", [H, width]);
  if (config.kind === "patches") {
    const { embedDim: E } = config;
    const M = (patchSize * poolingKernelSize) ** 2 * 3;
    const at = "vision_embedder";
    const pair = (path: string, length: number) => ({
      weight: modules.norm(`${at}.${path}`, length),
      bias: modules.parameter(`${at}.${path}.bias`, [length]),
    });
    const positions = modules.parameter(`${at}.pos_embedding`, [P, 2, E]);
    return {
      kind: "patches",
      norm1: pair("patch_ln1", M),
      dense: {
        weight: modules.matrix(`${at}.patch_dense`, [E, M]),
        bias: modules.parameter(`${at}.patch_dense.bias`, [E]),
      },
      norm2: pair("patch_ln2", E),
      positions: reshaped(positions, [2 * P, E]),
      positionNorm: pair("pos_norm", E),
      projection: projection(E),
    };
  }
  const { hiddenSize: N } = config;
  const at = "vision_tower";
  return {
    kind: "tower",
    patches: modules.matrix(`${at}.patch_embedder.input_proj`, [N, patchSize ** 2 * 3]),
    positions: reshaped(
      modules.parameter(`${at}.patch_embedder.position_embedding_table`, [2, P, N]),
      [2 * P, N],
    ),
    layers: Array.from(
      { length: config.layers },
      (_, i) => visionLayer(modules, config, `${at}.encoder.layers.${i}`),
    ),
    standardize: config.standardize
      ? {
        bias: modules.parameter(`${at}.std_bias`, [N]),
        scale: modules.parameter(`${at}.std_scale`, [N]),
      }
      : null,
    projection: projection(N),
  };
}

function visionLayer(modules: Modules, config: VisionTowerConfig, at: string): VisionLayerWeights {
  const { hiddenSize: N, heads, kvHeads, headDim: D, mlpWidth: W } = config;
  const linear = clippedLinears(modules, config.clippedLinears);
  const attention = `${at}.self_attn`;
  return {
    inputNorm: modules.norm(`${at}.input_layernorm`, N),
    q: linear(`${attention}.q_proj`, heads * D, N),
    k: linear(`${attention}.k_proj`, kvHeads * D, N),
    v: linear(`${attention}.v_proj`, kvHeads * D, N),
    qNorm: modules.norm(`${attention}.q_norm`, D),
    kNorm: modules.norm(`${attention}.k_norm`, D),
    o: linear(`${attention}.o_proj`, N, heads * D),
    postAttentionNorm: modules.norm(`${at}.post_attention_layernorm`, N),
    preFeedforwardNorm: modules.norm(`${at}.pre_feedforward_layernorm`, N),
    gate: linear(`${at}.mlp.gate_proj`, W, N),
    up: linear(`${at}.mlp.up_proj`, W, N),
    down: linear(`${at}.mlp.down_proj`, N, W),
    postFeedforwardNorm: modules.norm(`${at}.post_feedforward_layernorm`, N),
  };
}

function audioWeights(modules: Modules, config: AudioConfig, H: number): TowerWeights["audio"] {
  const projection = (width: number) => modules.matrix("embed_audio.embedding_projection", [H, width]);
  if (config.kind === "frames") return { kind: "frames", projection: projection(config.frameSize) };
  const { hiddenSize: N, outputDim: O, subsamplingChannels: [first, second] } = config;
  const at = "audio_tower";
  const from = `${at}.subsample_conv_projection`;
  return {
    kind: "tower",
    subsample: [
      subsampleWeights(modules, `${from}.layer0`, 1, first),
      subsampleWeights(modules, `${from}.layer1`, first, second),
    ],
    input: modules.matrix(`${from}.input_proj_linear`, [N, MEL_BINS / 4 * second]),
    layers: Array.from(
      { length: config.layers },
      (_, i) => audioLayer(modules, config, `${at}.layers.${i}`),
    ),
    output: {
      weight: modules.matrix(`${at}.output_proj`, [O, N]),
      bias: modules.parameter(`${at}.output_proj.bias`, [O]),
    },
    projection: projection(O),
  };
}

function audioLayer(modules: Modules, config: AudioTowerConfig, at: string): AudioLayerWeights {
  const { hiddenSize: N, heads, convKernelSize } = config;
  const linear = clippedLinears(modules, config.clippedLinears);
  const feedforward = (path: string): AudioFeedforwardWeights => ({
    preNorm: modules.norm(`${path}.pre_layer_norm`, N),
    up: linear(`${path}.ffw_layer_1`, 4 * N, N),
    down: linear(`${path}.ffw_layer_2`, N, 4 * N),
    postNorm: modules.norm(`${path}.post_layer_norm`, N),
  });
  const attention = `${at}.self_attn`;
  const conv = `${at}.lconv1d`;
  const depthwise = modules.oneOf(`${conv}.depthwise_conv1d.weight`, [
    [N, 1, convKernelSize],
    [N, convKernelSize, 1],
  ]);
  return {
    feedforward1: feedforward(`${at}.feed_forward1`),
    feedforward2: feedforward(`${at}.feed_forward2`),
    preAttentionNorm: modules.norm(`${at}.norm_pre_attn`, N),
    q: linear(`${attention}.q_proj`, N, N),
    k: linear(`${attention}.k_proj`, N, N),
    v: linear(`${attention}.v_proj`, N, N),
    perDimScale: modules.parameter(`${attention}.per_dim_scale`, [N / heads]),
    relative: modules.matrix(`${attention}.relative_k_proj`, [N, N]),
    post: linear(`${attention}.post`, N, N),
    postAttentionNorm: modules.norm(`${at}.norm_post_attn`, N),
    preConvNorm: modules.norm(`${conv}.pre_layer_norm`, N),
    start: linear(`${conv}.linear_start`, 2 * N, N),
    depthwise: reshaped(depthwise, [N, convKernelSize]),
    convNorm: modules.norm(`${conv}.conv_norm`, N),
    end: linear(`${conv}.linear_end`, N, N),
    outNorm: modules.norm(`${at}.norm_out`, N),
  };
}

/** A convolution in the order of either writer: [C', C, 3, 3], or [C', 3, 3, C]. */
function subsampleWeights(modules: Modules, at: string, inputs: number, outputs: number): SubsampleWeights {
  const weight = modules.oneOf(`${at}.conv.weight`, [[outputs, inputs, 3, 3], [outputs, 3, 3, inputs]]);
  return {
    weight: reshaped(weight, [outputs, 9 * inputs]),
    channelsLast: weight.shape[3] === inputs && inputs !== 3,
    norm: modules.norm(`${at}.norm`, outputs),
  };
}

/** Reads linears with their bounds, or without where the config has none. */
function clippedLinears(
  modules: Modules,
  clipped: boolean,
): (path: string, out: number, columns: number) => ClippedLinear {
  return (path, out, columns) => {
    // Towers wrap their linears; a writer that quantises them may drop the wrapper.
    const inner = modules.has(`${path}.linear`) ? `${path}.linear` : path;
    const weight = modules.matrix(inner, [out, columns]);
    if (!clipped) return { weight, clip: null };
    const bound = (name: string): StoredNumber => {
      const { format, parts } = modules.parameter(`${path}.${name}`, []);
      return { dtype: format.kind as StoredNumber["dtype"], range: parts.data };
    };
    return {
      weight,
      clip: {
        name: path,
        bounds: [bound("input_min"), bound("input_max"), bound("output_min"), bound("output_max")],
      },
    };
  };
}

function reshaped(weight: WeightTensor, shape: number[]): WeightTensor {
  return { ...weight, shape };
}

/** What a clip's bounds are: least and largest input, least and largest output; all finite in f32. */
export type ClipBounds = readonly [number, number, number, number];

const LARGEST = 3.4028234663852886e38; // of f32

/** Reads the bounds of every clip in a tree of weights. Rejects with `CheckpointError` for NaN or an empty range. */
export async function readClips(
  files: readonly FileEntry[],
  tree: object,
): Promise<Map<StoredClip, ClipBounds>> {
  const clips: StoredClip[] = [];
  const visit = (value: unknown) => {
    if (typeof value !== "object" || value === null) return;
    if ("bounds" in value && "name" in value) clips.push(value as StoredClip);
    else if (!("parts" in value)) Object.values(value).forEach(visit);
  };
  visit(tree);
  const handles = new Map<number, Awaited<ReturnType<typeof openFile>>>();
  using scope = new DisposableStack();
  const bounds = new Map<StoredClip, ClipBounds>();
  for (const clip of clips) {
    const numbers: number[] = [];
    for (const { dtype, range } of clip.bounds) {
      let handle = handles.get(range.file);
      if (handle === undefined) {
        handles.set(range.file, handle = scope.use(await openFile(null, files[range.file].path)));
      }
      const bytes = await readRange(handle, range.offset, range.length);
      numbers.push(Math.min(Math.max(numberOf(dtype, bytes), -LARGEST), LARGEST));
    }
    const [inputMin, inputMax, outputMin, outputMax] = numbers;
    if (!(inputMin <= inputMax && outputMin <= outputMax)) {
      throw new CheckpointError(
        "invalid_tensor",
        `The bounds of ${clip.name} are ${inputMin} to ${inputMax} and ${outputMin} to ${outputMax}; ` +
          `the first of each must not be above the second. Download or convert the checkpoint again.`,
      );
    }
    bounds.set(clip, [inputMin, inputMax, outputMin, outputMax]);
  }
  return bounds;
}

function numberOf(dtype: StoredNumber["dtype"], bytes: Uint8Array): number {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (dtype === "f32") return view.getFloat32(0, true);
  if (dtype === "f16") return view.getFloat16(0, true);
  const wide = new DataView(new ArrayBuffer(4));
  wide.setUint16(2, view.getUint16(0, true), true);
  return wide.getFloat32(0, true);
}
