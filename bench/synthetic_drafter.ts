/**
 * Writes a drafter for the models of `synthetic.ts`, with random weights in bf16: four layers of 256, the last of them full
 * attention, and 2,048 centroids of which 32 are looked at, as the drafters of the small published models have them.
 *
 *     deno run -A bench/synthetic_drafter.ts e4b FOLDER
 */
import { configOf, type Entry, Noise, type Shape, shapes, writeCheckpoint } from "./synthetic.ts";

const HIDDEN = 256;
const MLP = 2048;
const HEADS = 4;
const LAYERS = 4;
const CENTROIDS = 2048;
const TOP_CENTROIDS = 32;

/** Writes `config.json` and `model.safetensors` of a drafter for a target of this shape into `folder`. */
export async function writeSyntheticDrafter(target: Shape, folder: string): Promise<void> {
  await writeCheckpoint(folder, drafterConfig(target), entries(target, new Noise(20260102)));
}

function isFull(layer: number): boolean {
  return layer === LAYERS - 1;
}

function entries(target: Shape, noise: Noise): Entry[] {
  const list: Entry[] = [];
  const add = (name: string, shape: number[], mean: number, spread: number) => {
    const bytes = 2 * shape.reduce((a, b) => a * b, 1);
    list.push({ name, dtype: "BF16", shape, bytes, fill: noise.near(mean, spread) });
  };
  const linear = (name: string, rows: number, columns: number) =>
    add(`${name}.weight`, [rows, columns], 0, 0.035);
  const norm = (name: string, width: number) => add(`${name}.weight`, [width], 1, 0.1);
  linear("pre_projection", HIDDEN, 2 * target.hidden);
  linear("post_projection", target.hidden, HIDDEN);
  linear("masked_embedding.centroids", CENTROIDS, HIDDEN);
  const { vocabulary } = target;
  list.push({
    name: "masked_embedding.token_ordering",
    dtype: "I64",
    shape: [vocabulary],
    bytes: 8 * vocabulary,
    fill(chunk, offset) {
      const ids = new BigInt64Array(chunk.buffer, chunk.byteOffset, chunk.length / 8);
      for (let i = 0; i < ids.length; i++) ids[i] = BigInt(offset / 8 + i);
    },
  });
  linear("model.embed_tokens", vocabulary, HIDDEN);
  norm("model.norm", HIDDEN);
  for (let i = 0; i < LAYERS; i++) {
    const headDim = isFull(i) ? target.globalHeadDim : target.headDim;
    const layer = (name: string) => `model.layers.${i}.${name}`;
    for (const name of ["input", "post_attention", "pre_feedforward", "post_feedforward"]) {
      norm(layer(`${name}_layernorm`), HIDDEN);
    }
    norm(layer("self_attn.q_norm"), headDim);
    linear(layer("self_attn.q_proj"), HEADS * headDim, HIDDEN);
    linear(layer("self_attn.o_proj"), HIDDEN, HEADS * headDim);
    linear(layer("mlp.gate_proj"), MLP, HIDDEN);
    linear(layer("mlp.up_proj"), MLP, HIDDEN);
    linear(layer("mlp.down_proj"), HIDDEN, MLP);
    add(layer("layer_scalar"), [1], 0.5, 0.05);
  }
  return list;
}

function drafterConfig(target: Shape): Record<string, unknown> {
  return {
    architectures: ["Gemma4AssistantForCausalLM"],
    model_type: "gemma4_assistant",
    backbone_hidden_size: target.hidden,
    num_centroids: CENTROIDS,
    centroid_intermediate_top_k: TOP_CENTROIDS,
    use_ordered_embeddings: true,
    tie_word_embeddings: true,
    text_config: {
      ...configOf(target).text_config as Record<string, unknown>,
      final_logit_softcapping: null,
      hidden_size: HIDDEN,
      hidden_size_per_layer_input: 0,
      intermediate_size: MLP,
      layer_types: Array.from(
        { length: LAYERS },
        (_, i) => isFull(i) ? "full_attention" : "sliding_attention",
      ),
      num_attention_heads: HEADS,
      num_hidden_layers: LAYERS,
      num_kv_shared_layers: LAYERS,
      use_double_wide_mlp: false,
      vocab_size_per_layer_input: 0,
    },
  };
}

if (import.meta.main) {
  const [name, folder] = Deno.args;
  const target = name === undefined ? undefined : shapes[name];
  if (target === undefined || target.globalKvHeads !== undefined || folder === undefined) {
    console.error("usage: deno run -A bench/synthetic_drafter.ts e2b|e4b FOLDER");
    Deno.exit(2);
  }
  await writeSyntheticDrafter(target, folder);
}
