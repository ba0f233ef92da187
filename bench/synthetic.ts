/**
 * Writes a checkpoint of a real model's shape with random weights (MLX 4-bit or bf16), for speed and memory measurements.
 *
 *     deno run -A bench/synthetic.ts e2b FOLDER
 *
 * The text it generates is noise. Codes are uniform random, scales are such that weights have a standard deviation near
 * 0.02; norms are near 1 and layer scalars near 0.5, so that activations stay in a natural range.
 */

import { addTowers, E_TOWERS, towerConfig, type TowerShape } from "./synthetic_towers.ts";

/** The sizes that make a text stack. */
export interface Shape {
  hidden: number;
  layers: number;
  /** every n-th layer is full attention */ fullEvery: number;
  mlp: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  globalHeadDim: number;
  window: number;
  /** per-layer inputs; 0: none */ perLayer: number;
  /** last layers that read another layer's K and V */ sharedKv: number;
  doubleWide: boolean;
  vocabulary: number;
  /** KV heads of full layers, whose keys are then their values; absent: as the others, with values of their own */
  globalKvHeads?: number;
  /** routed experts of each layer */ experts?: { count: number; topK: number; width: number };
  /** the class that takes pictures and sound without encoders */ unified?: boolean;
  /** bf16 matrices instead of 4-bit ones */ unquantised?: boolean;
  /** eyes and ears */ towers?: TowerShape;
}

const LARGE = {
  fullEvery: 6,
  headDim: 256,
  globalHeadDim: 512,
  window: 1024,
  perLayer: 0,
  sharedKv: 0,
  doubleWide: false,
  vocabulary: 262144,
};

const E4B: Shape = {
  hidden: 2560,
  layers: 42,
  fullEvery: 6,
  mlp: 10240,
  heads: 8,
  kvHeads: 2,
  headDim: 256,
  globalHeadDim: 512,
  window: 512,
  perLayer: 256,
  sharedKv: 18,
  doubleWide: false,
  vocabulary: 262144,
};

/** 26B. */
const MIXTURE: Shape = {
  ...LARGE,
  hidden: 2816,
  layers: 30,
  mlp: 2112,
  heads: 16,
  kvHeads: 8,
  globalKvHeads: 2,
  experts: { count: 128, topK: 8, width: 704 },
};

/** Shapes of the published models. */
export const shapes: Record<string, Shape> = {
  e2b: {
    hidden: 1536,
    layers: 35,
    fullEvery: 5,
    mlp: 6144,
    heads: 8,
    kvHeads: 1,
    headDim: 256,
    globalHeadDim: 512,
    window: 512,
    perLayer: 256,
    sharedKv: 20,
    doubleWide: true,
    vocabulary: 262144,
  },
  e4b: E4B,
  // The towers of E4B with a few layers of its text, a small vocabulary and no per-layer inputs.
  "e4b-towers": { ...E4B, layers: 6, perLayer: 0, sharedKv: 0, vocabulary: 2048, towers: E_TOWERS },
  // Of the 12B only the hidden size was at hand. The rest is an assumption: the stack of the previous family's model of this
  // hidden size, with the full layers of the larger models of this one.
  "12b": {
    ...LARGE,
    hidden: 3840,
    layers: 48,
    mlp: 15360,
    heads: 16,
    kvHeads: 8,
    globalKvHeads: 2,
    unified: true,
  },
  "26b-a4b": MIXTURE,
  "26b-standard": { ...MIXTURE, unquantised: true },
  "31b": { ...LARGE, hidden: 5376, layers: 60, mlp: 21504, heads: 32, kvHeads: 16, globalKvHeads: 4 },
};

const GROUP = 64;
const BITS = 4;
const ROUTER_BITS = 8;

/** A tensor of a checkpoint. */
export interface Entry {
  name: string;
  dtype: "U32" | "BF16" | "I64";
  shape: number[];
  bytes: number;
  fill: (chunk: Uint8Array, offset: number) => void;
}

/** Deterministic noise: one pool of random words, read from a different place for each tensor. */
export class Noise {
  readonly #pool = new Uint8Array(1 << 24);
  readonly #near = new Map<string, Uint8Array>();
  #next = 0;

  constructor(seed: number) {
    const words = new Uint32Array(this.#pool.buffer);
    let state = seed >>> 0 || 1;
    for (let i = 0; i < words.length; i++) {
      state ^= state << 13;
      state >>>= 0;
      state ^= state >>> 17;
      state ^= state << 5;
      state >>>= 0;
      words[i] = state;
    }
  }

  /** A filler that copies pool bytes, starting somewhere new. */
  codes(pool: Uint8Array = this.#pool): Entry["fill"] {
    const start = this.#next = (this.#next + 7_340_033 * 4) % pool.length;
    return (chunk, offset) => {
      let at = 0;
      while (at < chunk.length) {
        const from = (start + offset + at) % pool.length;
        const part = pool.subarray(from, Math.min(pool.length, from + chunk.length - at));
        chunk.set(part, at);
        at += part.length;
      }
    };
  }

  /** bf16 values near `mean`, spread by `spread` on either side. */
  near(mean: number, spread: number): Entry["fill"] {
    const key = `${mean} ${spread}`;
    let pool = this.#near.get(key);
    if (pool === undefined) {
      const table = new Uint16Array(256);
      const value = new DataView(new ArrayBuffer(4));
      for (let i = 0; i < 256; i++) {
        value.setFloat32(0, mean + spread * (i / 127.5 - 1));
        table[i] = value.getUint16(0);
      }
      const values = Uint16Array.from(new Uint16Array(this.#pool.buffer), (word) => table[word & 255]);
      this.#near.set(key, pool = new Uint8Array(values.buffer));
    }
    return this.codes(pool);
  }
}

/** Takes the tensors of a text network as `addText` lists them; names are those of modules, from its root on. */
export interface TextSink {
  /** [...rows, columns]; `isRouter`: of a router, which keeps more than the weights that it chooses */
  matrix(name: string, rows: number[], columns: number, isRouter?: boolean): void;
  /** [width], near 1 */ norm(name: string, width: number): void;
  /** values within `spread` of `mean`; `name` is the tensor's own */
  values(name: string, dims: number[], mean: number, spread: number): void;
}

/** Every tensor of a text network of this shape. */
export function addText(shape: Shape, sink: TextSink): void {
  const { hidden, perLayer, layers, vocabulary } = shape;
  const norm = sink.norm.bind(sink);
  const linear = (name: string, rows: number, columns: number) => sink.matrix(name, [rows], columns);
  linear("embed_tokens", vocabulary, hidden);
  norm("norm", hidden);
  if (perLayer > 0) {
    linear("embed_tokens_per_layer", vocabulary, layers * perLayer);
    linear("per_layer_model_projection", layers * perLayer, hidden);
    norm("per_layer_projection_norm", perLayer);
  }
  for (let i = 0; i < layers; i++) {
    const full = isFull(shape, i);
    const headDim = full ? shape.globalHeadDim : shape.headDim;
    const shared = i >= layers - shape.sharedKv;
    const mlp = shape.mlp * (shared && shape.doubleWide ? 2 : 1);
    const layer = (name: string) => `layers.${i}.${name}`;
    norm(layer("input_layernorm"), hidden);
    norm(layer("post_attention_layernorm"), hidden);
    norm(layer("pre_feedforward_layernorm"), hidden);
    norm(layer("post_feedforward_layernorm"), hidden);
    norm(layer("self_attn.q_norm"), headDim);
    linear(layer("self_attn.q_proj"), shape.heads * headDim, hidden);
    linear(layer("self_attn.o_proj"), hidden, shape.heads * headDim);
    if (!shared) {
      const keysAreValues = full && shape.globalKvHeads !== undefined;
      const kvHeads = keysAreValues ? shape.globalKvHeads! : shape.kvHeads;
      norm(layer("self_attn.k_norm"), headDim);
      linear(layer("self_attn.k_proj"), kvHeads * headDim, hidden);
      if (!keysAreValues) linear(layer("self_attn.v_proj"), kvHeads * headDim, hidden);
    }
    linear(layer("mlp.gate_proj"), mlp, hidden);
    linear(layer("mlp.up_proj"), mlp, hidden);
    linear(layer("mlp.down_proj"), hidden, mlp);
    if (shape.experts) {
      const { count, width } = shape.experts;
      for (
        const name of [
          "post_feedforward_layernorm_1",
          "pre_feedforward_layernorm_2",
          "post_feedforward_layernorm_2",
        ]
      ) {
        norm(layer(name), hidden);
      }
      sink.matrix(layer("router.proj"), [count], hidden, true);
      sink.values(layer("router.scale"), [hidden], 1, 0.1);
      sink.values(layer("router.per_expert_scale"), [count], 1, 0.1);
      for (const name of ["gate_proj", "up_proj"]) {
        sink.matrix(layer(`experts.switch_glu.${name}`), [count, width], hidden);
      }
      sink.matrix(layer("experts.switch_glu.down_proj"), [count, hidden], width);
    }
    if (perLayer > 0) {
      linear(layer("per_layer_input_gate"), perLayer, hidden);
      linear(layer("per_layer_projection"), hidden, perLayer);
      norm(layer("post_per_layer_input_norm"), hidden);
    }
    sink.values(layer("layer_scalar"), [1], 0.5, 0.05);
  }
}

/** Whether a layer attends to everything before it. */
export function isFull(shape: Shape, layer: number): boolean {
  return (layer + 1) % shape.fullEvery === 0;
}

/** Every tensor of a model of this shape, in MLX names. */
function entries(shape: Shape, noise: Noise): Entry[] {
  const list: Entry[] = [];
  const root = "language_model.model.";
  const bf16 = (name: string, dims: number[], mean: number, spread: number) => {
    const bytes = 2 * dims.reduce((a, b) => a * b, 1);
    list.push({ name, dtype: "BF16", shape: dims, bytes, fill: noise.near(mean, spread) });
  };
  if (shape.towers) addTowers(shape.towers, shape.hidden, bf16);
  addText(shape, {
    norm: (name, width) => bf16(`${root}${name}.weight`, [width], 1, 0.1),
    values: (name, dims, mean, spread) => bf16(root + name, dims, mean, spread),
    matrix(name, rows, columns, isRouter = false) {
      if (shape.unquantised) return bf16(`${root}${name}.weight`, [...rows, columns], 0, 0.035);
      const bits = isRouter ? ROUTER_BITS : BITS;
      const words = columns * bits / 32;
      list.push({
        name: `${root}${name}.weight`,
        dtype: "U32",
        shape: [...rows, words],
        bytes: rows.reduce((a, b) => a * b, 1) * words * 4,
        fill: noise.codes(),
      });
      const step = 0.0043 * 2 ** (BITS - bits);
      bf16(`${root}${name}.scales`, [...rows, columns / GROUP], step, 0.1 * step);
      bf16(`${root}${name}.biases`, [...rows, columns / GROUP], -step * (2 ** bits - 1) / 2, 0.7 * 0.0043);
    },
  });
  return list;
}

/** The `config.json` of a model of this shape. */
export function configOf(shape: Shape): Record<string, unknown> {
  const layerTypes = Array.from(
    { length: shape.layers },
    (_, i) => isFull(shape, i) ? "full_attention" : "sliding_attention",
  );
  const routers = shape.experts
    ? Object.fromEntries(
      layerTypes.map((_, i) => [
        `language_model.model.layers.${i}.router.proj`,
        { group_size: GROUP, bits: ROUTER_BITS, mode: "affine" },
      ]),
    )
    : {};
  const type = shape.unified ? "gemma4_unified" : "gemma4";
  return {
    architectures: [
      shape.unified ? "Gemma4UnifiedForConditionalGeneration" : "Gemma4ForConditionalGeneration",
    ],
    model_type: type,
    audio_config: null,
    vision_config: null,
    ...(shape.towers ? towerConfig(shape.towers) : {}),
    ...(shape.unquantised
      ? {}
      : { quantization: { group_size: GROUP, bits: BITS, mode: "affine", ...routers } }),
    tie_word_embeddings: true,
    text_config: {
      model_type: `${type}_text`,
      attention_k_eq_v: shape.globalKvHeads !== undefined,
      ...(shape.globalKvHeads !== undefined ? { num_global_key_value_heads: shape.globalKvHeads } : {}),
      bos_token_id: 2,
      eos_token_id: 1,
      pad_token_id: 0,
      enable_moe_block: shape.experts !== undefined,
      ...(shape.experts
        ? {
          num_experts: shape.experts.count,
          top_k_experts: shape.experts.topK,
          moe_intermediate_size: shape.experts.width,
        }
        : {}),
      final_logit_softcapping: 30.0,
      head_dim: shape.headDim,
      global_head_dim: shape.globalHeadDim,
      hidden_activation: "gelu_pytorch_tanh",
      hidden_size: shape.hidden,
      hidden_size_per_layer_input: shape.perLayer,
      intermediate_size: shape.mlp,
      layer_types: layerTypes,
      max_position_embeddings: 131072,
      num_attention_heads: shape.heads,
      num_hidden_layers: shape.layers,
      num_key_value_heads: shape.kvHeads,
      num_kv_shared_layers: shape.sharedKv,
      rms_norm_eps: 1e-6,
      rope_parameters: {
        full_attention: { partial_rotary_factor: 0.25, rope_theta: 1000000.0, rope_type: "proportional" },
        sliding_attention: { rope_theta: 10000.0, rope_type: "default" },
      },
      sliding_window: shape.window,
      tie_word_embeddings: true,
      use_double_wide_mlp: shape.doubleWide,
      vocab_size: shape.vocabulary,
      vocab_size_per_layer_input: shape.vocabulary,
    },
  };
}

const CHUNK = 1 << 22; // bytes written at a time

/** Writes `config.json` and `model.safetensors` of a model into `folder`. */
export async function writeSynthetic(shape: Shape, folder: string): Promise<void> {
  await writeCheckpoint(folder, configOf(shape), entries(shape, new Noise(20260101)));
}

/** Writes `config.json` and `model.safetensors` into `folder`. */
export async function writeCheckpoint(
  folder: string,
  config: Record<string, unknown>,
  tensors: readonly Entry[],
): Promise<void> {
  await Deno.mkdir(folder, { recursive: true });
  await Deno.writeTextFile(`${folder}/config.json`, JSON.stringify(config, null, 1));
  // Wide elements first, as the reference writer does, and lone scalars last: they would misalign what comes after.
  const list = tensors.toSorted((a, b) =>
    Number(a.dtype === "BF16") - Number(b.dtype === "BF16") || Number(a.bytes === 2) - Number(b.bytes === 2)
  );
  const header: Record<string, unknown> = { __metadata__: { format: "mlx" } };
  let offset = 0;
  for (const entry of list) {
    header[entry.name] = {
      dtype: entry.dtype,
      shape: entry.shape,
      data_offsets: [offset, offset + entry.bytes],
    };
    offset += entry.bytes;
  }
  let json = JSON.stringify(header);
  json += " ".repeat((64 - (json.length + 8) % 64) % 64); // so that the data begins at a multiple of 64 bytes
  const text = new TextEncoder().encode(json);
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(text.length), true);
  const partial = `${folder}/model.safetensors.partial`;
  using file = await Deno.open(partial, { write: true, create: true, truncate: true });
  const write = async (bytes: Uint8Array) => {
    while (bytes.length > 0) bytes = bytes.subarray(await file.write(bytes));
  };
  await write(length);
  await write(text);
  const chunk = new Uint8Array(CHUNK);
  for (const entry of list) {
    for (let at = 0; at < entry.bytes; at += CHUNK) {
      const part = chunk.subarray(0, Math.min(CHUNK, entry.bytes - at));
      entry.fill(part, at);
      await write(part);
    }
  }
  await Deno.rename(partial, `${folder}/model.safetensors`);
}

if (import.meta.main) {
  const [name, folder] = Deno.args;
  const shape = name === undefined ? undefined : shapes[name];
  if (shape === undefined || folder === undefined) {
    console.error(`usage: deno run -A bench/synthetic.ts ${Object.keys(shapes).join("|")} FOLDER`);
    Deno.exit(2);
  }
  await writeSynthetic(shape, folder);
  const { size } = await Deno.stat(`${folder}/model.safetensors`);
  console.log(`${folder}: ${(size / 1e9).toFixed(2)} GB`);
}
