/** Vision and audio towers of a real model's shape with random weights, for `synthetic.ts`. Names and layouts are MLX's. */

/** Sizes of the towers of one model. */
export interface TowerShape {
  vision: { hidden: number; layers: number; heads: number; headDim: number; mlp: number; positions: number };
  audio: {
    hidden: number;
    layers: number;
    heads: number;
    kernel: number;
    channels: [number, number];
    output: number;
  } | null;
}

/** The towers of E2B and E4B. */
export const E_TOWERS: TowerShape = {
  vision: { hidden: 768, layers: 16, heads: 12, headDim: 64, mlp: 3072, positions: 10240 },
  audio: { hidden: 1024, layers: 12, heads: 8, kernel: 5, channels: [128, 32], output: 1536 },
};

const PATCH_PIXELS = 16 * 16 * 3;
const MEL_BINS = 128;
/** Far enough out to leave activations as they are. */
const BOUND = 100;

/** Adds a bf16 tensor whose values lie within `spread` of `mean`. */
export type AddTensor = (name: string, shape: number[], mean: number, spread: number) => void;

/** Every tensor of the towers; `hidden` is the text's. */
export function addTowers({ vision, audio }: TowerShape, hidden: number, add: AddTensor): void {
  const norm = (name: string, width: number) => add(`${name}.weight`, [width], 1, 0.1);
  // Uniform within ±√(3 / columns): products of unit rows are about 1.
  const matrix = (name: string, rows: number, columns: number) =>
    add(`${name}.weight`, [rows, columns], 0, Math.sqrt(3 / columns));
  const clipped = (name: string, rows: number, columns: number) => {
    matrix(`${name}.linear`, rows, columns);
    for (const part of ["input", "output"]) {
      add(`${name}.${part}_min`, [], -BOUND, 0);
      add(`${name}.${part}_max`, [], BOUND, 0);
    }
  };
  const N = vision.hidden;
  const width = vision.heads * vision.headDim;
  matrix("vision_tower.patch_embedder.input_proj", N, PATCH_PIXELS);
  add("vision_tower.patch_embedder.position_embedding_table", [2, vision.positions, N], 0, 0.1);
  for (let i = 0; i < vision.layers; i++) {
    const at = `vision_tower.encoder.layers.${i}`;
    for (const name of ["input", "post_attention", "pre_feedforward", "post_feedforward"]) {
      norm(`${at}.${name}_layernorm`, N);
    }
    for (const name of ["q", "k", "v"]) clipped(`${at}.self_attn.${name}_proj`, width, N);
    clipped(`${at}.self_attn.o_proj`, N, width);
    norm(`${at}.self_attn.q_norm`, vision.headDim);
    norm(`${at}.self_attn.k_norm`, vision.headDim);
    clipped(`${at}.mlp.gate_proj`, vision.mlp, N);
    clipped(`${at}.mlp.up_proj`, vision.mlp, N);
    clipped(`${at}.mlp.down_proj`, N, vision.mlp);
  }
  matrix("embed_vision.embedding_projection", hidden, N);
  if (audio === null) return;

  const A = audio.hidden;
  const [first, second] = audio.channels;
  const conv = (name: string, outputs: number, inputs: number) => {
    add(`${name}.conv.weight`, [outputs, 3, 3, inputs], 0, Math.sqrt(1 / (3 * inputs)));
    norm(`${name}.norm`, outputs);
  };
  conv("audio_tower.subsample_conv_projection.layer0", first, 1);
  conv("audio_tower.subsample_conv_projection.layer1", second, first);
  matrix("audio_tower.subsample_conv_projection.input_proj_linear", A, MEL_BINS / 4 * second);
  for (let i = 0; i < audio.layers; i++) {
    const at = `audio_tower.layers.${i}`;
    for (const name of ["feed_forward1", "feed_forward2"]) {
      norm(`${at}.${name}.pre_layer_norm`, A);
      norm(`${at}.${name}.post_layer_norm`, A);
      clipped(`${at}.${name}.ffw_layer_1`, 4 * A, A);
      clipped(`${at}.${name}.ffw_layer_2`, A, 4 * A);
    }
    for (const name of ["norm_pre_attn", "norm_post_attn", "norm_out"]) norm(`${at}.${name}`, A);
    for (const name of ["q_proj", "k_proj", "v_proj", "post"]) clipped(`${at}.self_attn.${name}`, A, A);
    matrix(`${at}.self_attn.relative_k_proj`, A, A);
    add(`${at}.self_attn.per_dim_scale`, [A / audio.heads], 0, 0.5);
    norm(`${at}.lconv1d.pre_layer_norm`, A);
    clipped(`${at}.lconv1d.linear_start`, 2 * A, A);
    add(`${at}.lconv1d.depthwise_conv1d.weight`, [A, audio.kernel, 1], 0, Math.sqrt(3 / audio.kernel));
    norm(`${at}.lconv1d.conv_norm`, A);
    clipped(`${at}.lconv1d.linear_end`, A, A);
  }
  matrix("audio_tower.output_proj", audio.output, A);
  add("audio_tower.output_proj.bias", [audio.output], 0, 0.1);
  matrix("embed_audio.embedding_projection", hidden, audio.output);
}

/** `vision_config` and `audio_config`, and the ids of placeholders. */
export function towerConfig({ vision, audio }: TowerShape): Record<string, unknown> {
  return {
    image_token_id: 1000,
    audio_token_id: 1001,
    vision_config: {
      model_type: "gemma4_vision",
      hidden_size: vision.hidden,
      num_hidden_layers: vision.layers,
      num_attention_heads: vision.heads,
      num_key_value_heads: vision.heads,
      head_dim: vision.headDim,
      intermediate_size: vision.mlp,
      patch_size: 16,
      pooling_kernel_size: 3,
      position_embedding_size: vision.positions,
      rms_norm_eps: 1e-6,
      use_clipped_linears: true,
      standardize: false,
    },
    audio_config: audio && {
      model_type: "gemma4_audio",
      hidden_size: audio.hidden,
      num_hidden_layers: audio.layers,
      num_attention_heads: audio.heads,
      conv_kernel_size: audio.kernel,
      subsampling_conv_channels: audio.channels,
      output_proj_dims: audio.output,
      use_clipped_linears: true,
    },
  };
}
