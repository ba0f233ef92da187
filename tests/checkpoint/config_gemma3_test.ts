import { assertEquals, assertStringIncludes, assertThrows } from "@std/assert";
import { parseConfig } from "../../src/checkpoint/config.ts";
import { ggufConfig } from "../../src/checkpoint/gguf_config.ts";
import { GgufMetadata, type GgufValue } from "../../src/checkpoint/gguf_metadata.ts";
import { CheckpointError } from "../../src/errors.ts";
import { readJson } from "./support.ts";

/** The 1B model's config as published, in the spelling of its time. */
const ONE = {
  model_type: "gemma3_text",
  attn_logit_softcapping: null,
  bos_token_id: 2,
  eos_token_id: [1, 106],
  final_logit_softcapping: null,
  head_dim: 256,
  hidden_activation: "gelu_pytorch_tanh",
  hidden_size: 1152,
  intermediate_size: 6912,
  max_position_embeddings: 32768,
  num_attention_heads: 4,
  num_hidden_layers: 26,
  num_key_value_heads: 1,
  query_pre_attn_scalar: 256,
  rms_norm_eps: 1e-6,
  rope_local_base_freq: 10000,
  rope_scaling: null,
  rope_theta: 1_000_000,
  sliding_window: 512,
  sliding_window_pattern: 6,
  vocab_size: 262144,
};

/** The 27B model's, which is multimodal and leaves much to the defaults. */
const TWENTY_SEVEN = {
  model_type: "gemma3",
  eos_token_id: [1, 106],
  image_token_index: 262144,
  text_config: {
    model_type: "gemma3_text",
    head_dim: 128,
    hidden_size: 5376,
    intermediate_size: 21504,
    num_attention_heads: 32,
    num_hidden_layers: 62,
    num_key_value_heads: 16,
    query_pre_attn_scalar: 168,
    rope_scaling: { factor: 8, rope_type: "linear" },
    sliding_window: 1024,
  },
  vision_config: { model_type: "siglip_vision_model" },
};

Deno.test("a Gemma 3 text config: five sliding layers to a full one, norms without their one, no value norm", () => {
  const config = parseConfig(ONE);
  const full = config.layers.filter(({ kind }) => kind === "full").map(({ index }) => index);
  assertEquals(full, [5, 11, 17, 23]);
  assertEquals(config.layers[0].rope, { theta: 10_000, rotatedPairs: 128, factor: 1 });
  assertEquals(config.layers[5].rope, { theta: 1_000_000, rotatedPairs: 128, factor: 1 });
  assertEquals([config.layers[0].window, config.layers[5].window], [512, null]);
  assertEquals(
    config.layers.every(({ index, kvOwner, keysAreValues }) => kvOwner === index && !keysAreValues),
    true,
  );
  const { architecture, normWeightOffset, attentionScale, valueNorm, layerScalar, finalLogitSoftcap } =
    config;
  assertEquals(
    { architecture, normWeightOffset, attentionScale, valueNorm, layerScalar, finalLogitSoftcap },
    {
      architecture: "gemma3",
      normWeightOffset: 1,
      attentionScale: 1 / 16,
      valueNorm: false,
      layerScalar: false,
      finalLogitSoftcap: null,
    },
  );
  assertEquals([config.embeddingScale, config.tiedEmbeddings], [Math.sqrt(1152), true]);
  assertEquals([config.tokens.bos, config.tokens.eos, config.contextLength], [2, [1, 106], 32768]);
});

Deno.test("the larger models divide the full layers' positions by 8, the largest has a score scale of its own", () => {
  const config = parseConfig(TWENTY_SEVEN);
  assertEquals(config.layers[5].rope, { theta: 1_000_000, rotatedPairs: 64, factor: 8 });
  assertEquals(config.layers[4].rope, { theta: 10_000, rotatedPairs: 64, factor: 1 });
  assertEquals(config.attentionScale, 168 ** -0.5);
  assertEquals([config.vocabularySize, config.contextLength], [262_208, 131_072]);
  assertEquals([config.vision, config.audio, config.tokens.eos], [null, null, [1, 106]]);
});

Deno.test("bases and scaling by layer kind mean what the older spelling means", () => {
  const older = parseConfig(ONE);
  const { rope_theta: _t, rope_local_base_freq: _l, rope_scaling: _s, sliding_window_pattern: _p, ...rest } =
    ONE;
  const newer = {
    ...rest,
    layer_types: older.layers.map(({ kind }) => `${kind}_attention`),
    rope_parameters: {
      full_attention: { rope_type: "default", rope_theta: 1_000_000 },
      sliding_attention: { rope_type: "default", rope_theta: 10_000 },
    },
  };
  assertEquals(parseConfig(newer), older);
  const fixture = parseConfig(readJson("gemma3", "config.json"));
  assertEquals(fixture.layers[5].rope, { theta: 1_000_000, rotatedPairs: 16, factor: 8 });
});

/** [what is wrong, change of the 1B config, words of the message]. */
const WRONG: [string, Record<string, unknown>, string[]][] = [
  ["a view in both directions", { use_bidirectional_attention: true }, [
    "use_bidirectional_attention",
    "generate text",
  ]],
  ["a soft cap of its predecessor", { attn_logit_softcapping: 50 }, ["attn_logit_softcapping is 50"]],
  ["an unknown scaling", { rope_scaling: { rope_type: "yarn", factor: 8 } }, ['rope_type is "yarn"']],
  ["a scaling without a factor", { rope_scaling: { rope_type: "linear" } }, ["factor is missing"]],
  ["bases for one kind only", { rope_parameters: { full_attention: {} } }, [
    "rope_parameters",
    "sliding_attention",
  ]],
  ["a score scale of 0", { query_pre_attn_scalar: 0 }, ["query_pre_attn_scalar is 0"]],
  ["a period of 0", { sliding_window_pattern: 0 }, ["sliding_window_pattern is 0"]],
  ["KV heads that do not divide the heads", { num_key_value_heads: 3 }, ["num_key_value_heads is 3"]],
];
for (const [what, change, words] of WRONG) {
  Deno.test(`a Gemma 3 config with ${what} is refused with the key and the value`, () => {
    const error = assertThrows(() => parseConfig({ ...ONE, ...change }), CheckpointError);
    for (const word of words) assertStringIncludes(error.message, word);
  });
}

/** Metadata of a Gemma 3 file of this many layers. */
function metadata(layers: number, other: Record<string, GgufValue> = {}): GgufMetadata {
  const entries = new GgufMetadata("m.gguf");
  const all: Record<string, GgufValue> = {
    "general.architecture": "gemma3",
    "gemma3.context_length": 131_072,
    "gemma3.embedding_length": 5376,
    "gemma3.block_count": layers,
    "gemma3.feed_forward_length": 21504,
    "gemma3.attention.head_count": 32,
    "gemma3.attention.head_count_kv": 16,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.key_length": 128,
    "gemma3.attention.value_length": 128,
    "gemma3.attention.sliding_window": 1024,
    "gemma3.rope.freq_base": 1_000_000,
    "gemma3.rope.scaling.type": "linear",
    "gemma3.rope.scaling.factor": 8,
    ...other,
  };
  for (const [key, value] of Object.entries(all)) entries.set(key, value);
  return entries;
}

const ofMetadata = (entries: GgufMetadata) =>
  parseConfig(ggufConfig({ metadata: entries, tensors: new Map(), ropeFactors: null }));

Deno.test("a GGUF file says nothing of the score scale, which follows the head size except in the largest model", () => {
  const expected = parseConfig(TWENTY_SEVEN);
  const largest = ofMetadata(metadata(62));
  assertEquals(largest.attentionScale, expected.attentionScale);
  assertEquals(largest.layers, expected.layers);
  assertEquals(ofMetadata(metadata(48)).attentionScale, 128 ** -0.5);
  assertEquals(ofMetadata(metadata(62, { "gemma3.attention.scale": 0.125 })).attentionScale, 0.125);
});

Deno.test("a GGUF file may name the kinds of layers by a list or a period", () => {
  const list = [true, false, true, true];
  const kinds = (value: GgufValue) =>
    ofMetadata(metadata(4, { "gemma3.attention.sliding_window_pattern": value })).layers.map(({ kind }) =>
      kind
    );
  assertEquals(kinds(list), ["sliding", "full", "sliding", "sliding"]);
  assertEquals(kinds(2), ["sliding", "full", "sliding", "full"]);
  assertThrows(() => kinds([true]), CheckpointError, "a list of 4 booleans");
  assertThrows(() => kinds(0), CheckpointError, "a period from 1");
});
