import { assertAlmostEquals, assertEquals, assertStringIncludes, assertThrows } from "@std/assert";
import { existsSync } from "node:fs";
import { parseConfig } from "../../src/checkpoint/config.ts";
import { CheckpointError } from "../../src/errors.ts";
import { folderOf, onRow, OWN_ROWS, readJson, SHARED_ROWS, TINY } from "./support.ts";

for (const row of [...OWN_ROWS, ...SHARED_ROWS]) {
  Deno.test({
    ...onRow(row, "its config parses"),
    fn() {
      const raw = readJson(row, "config.json");
      const config = parseConfig(raw);
      const text = raw.text_config;
      assertEquals(config.layers.length, text.num_hidden_layers);
      assertEquals(config.vocabularySize, text.vocab_size);
      assertAlmostEquals(config.embeddingScale ** 2, text.hidden_size, 1e-9);
      for (const layer of config.layers) {
        const full = text.layer_types[layer.index] === "full_attention";
        assertEquals(layer.kind, full ? "full" : "sliding");
        assertEquals(layer.headDim, full ? text.global_head_dim : text.head_dim);
        assertEquals(layer.window, full ? null : text.sliding_window);
        assertEquals(layer.rope.theta, full ? 1_000_000 : 10_000);
        assertEquals(layer.rope.rotatedPairs, full ? layer.headDim / 8 : layer.headDim / 2);
      }
    },
  });

  const perLayer = `${folderOf(row)}/config.per_layer.json`;
  if (!existsSync(perLayer)) continue;
  Deno.test(`${row}: both spellings of its config mean the same`, () => {
    assertEquals(
      parseConfig(readJson(row, "config.json")),
      parseConfig(readJson(row, "config.per_layer.json")),
    );
  });
}

Deno.test("e2b: shared layers read the last owner of their kind and have double-wide MLPs", () => {
  const { layers } = parseConfig(readJson("e2b", "config.json"));
  assertEquals(layers.map((layer) => layer.kvOwner), [0, 1, 2, 3, 4, 3, 3, 3, 3, 4]);
  assertEquals(layers.map((layer) => layer.mlpWidth), [64, 64, 64, 64, 64, 128, 128, 128, 128, 128]);
});

Deno.test("e4b: per-layer inputs, softcap, tokens and the exact embedding scale are read", () => {
  const config = parseConfig(readJson("e4b", "config.json"));
  assertEquals([config.perLayerInputSize, config.perLayerVocabularySize], [32, 256]);
  assertEquals(config.finalLogitSoftcap, 30);
  assertEquals(config.embeddingScale, 8);
  assertEquals(config.tokens, {
    bos: 2,
    eos: [1],
    suppressed: [],
    pad: 0,
    image: 251,
    audio: 254,
    video: 255,
    beginImage: 249,
    endImage: 250,
    beginAudio: 252,
    endAudio: 253,
  });
});

Deno.test({
  ...onRow("26b-a4b", "full layers have their own KV heads, keys are values, every layer has experts"),
  fn() {
    const { layers, bidirectional } = parseConfig(readJson("26b-a4b", "config.json"));
    assertEquals(layers.map((layer) => layer.kvHeads), [2, 2, 2, 2, 2, 1]);
    assertEquals(layers.map((layer) => layer.keysAreValues), [false, false, false, false, false, true]);
    assertEquals(layers[3].experts, { count: 5, topK: 2, width: 64 });
    assertEquals(bidirectional, "vision");
    assertEquals(layers.map((layer) => layer.mediaBlock).slice(4), ["window", "causal"]);
  },
});

Deno.test({
  ...onRow("12b", "the unified class has no per-layer inputs and sees whole media blocks in all layers"),
  fn() {
    const config = parseConfig(readJson("12b", "config.json"));
    assertEquals(config.perLayerInputSize, 0);
    assertEquals(new Set(config.layers.map((layer) => layer.mediaBlock)), new Set(["whole" as const]));
    assertEquals(config.vision, {
      kind: "patches",
      embedDim: 64,
      positionRows: 96,
      outputDim: 64,
      patchSize: 6,
      poolingKernelSize: 3,
      rmsNormEps: 1e-6,
    });
    assertEquals(config.audio, { kind: "frames", frameSize: 640, rmsNormEps: 1e-6 });
  },
});

Deno.test({
  ...onRow("assistant-e2b", "a drafter owns no keys and names its target's hidden size and centroids"),
  fn() {
    const config = parseConfig(readJson("assistant-e2b", "config.json"));
    assertEquals(config.drafter, { backboneHiddenSize: 64, centroids: { count: 32, topK: 4 } });
    assertEquals(config.layers.map((layer) => layer.kvOwner), [-1, -1, -1, -1]);
    assertEquals(config.finalLogitSoftcap, null);
    const raw = { ...readJson("assistant-e2b", "config.json"), model_type: "gemma4_unified_assistant" };
    assertEquals(parseConfig(raw), { ...config, modelType: "gemma4_unified_assistant" });
  },
});

Deno.test("the end tokens are the union of all sources", () => {
  const raw = JSON.parse(Deno.readTextFileSync(`${TINY}/config.json`));
  assertEquals(parseConfig(raw).tokens.eos, [1, 9, 16]);
  assertEquals(parseConfig(raw, { eos_token_id: [106, 1] }).tokens.eos, [1, 9, 16, 106]);
  assertEquals(parseConfig({ ...raw, generation_config: { eos_token_id: 50 } }).tokens.eos, [1, 9, 16, 50]);
});

Deno.test("a bare gemma4_text config gets the reference's defaults for what it leaves out", () => {
  const config = parseConfig({ model_type: "gemma4_text" });
  assertEquals([config.layers.length, config.hiddenSize, config.vocabularySize], [30, 2304, 262_144]);
  assertEquals(config.layers.filter((layer) => layer.kind === "full").map((layer) => layer.index), [
    5,
    11,
    17,
    23,
    29,
  ]);
  assertEquals([config.layers[0].headDim, config.layers[5].headDim], [256, 512]);
  assertEquals([config.layers[0].window, config.layers[5].window], [512, null]);
  assertEquals([config.perLayerInputSize, config.contextLength], [256, 131_072]);
  assertEquals(config.layers[5].rope, { theta: 1_000_000, rotatedPairs: 64, factor: 1 });
});

Deno.test("per-layer keys may be padded with zeros", () => {
  const raw = readJson("e2b", "config.per_layer.json");
  raw.text_config.per_layer_config = { "004": { head_dim: 128 }, "009": { head_dim: 128 } };
  assertEquals(parseConfig(raw), parseConfig(readJson("e2b", "config.json")));
});

Deno.test("an unknown model type is one sentence that names it and the supported ones", () => {
  const error = assertThrows(() => parseConfig({ model_type: "llama" }), CheckpointError);
  assertEquals(
    error.message,
    'Model type "llama" is not supported. Supported: gemma3, gemma3_text, gemma4, gemma4_text, gemma4_unified, ' +
      "gemma4_unified_text, gemma4_assistant, gemma4_unified_assistant.",
  );
  assertEquals(error.code, "unknown_model_type");
  assertStringIncludes(assertThrows(() => parseConfig({})).message, "names no model_type");
});

/** [what is wrong, change of e2b's text config, words of the message]. */
const WRONG: [string, Record<string, unknown>, string[]][] = [
  ["no layers", { num_hidden_layers: 0 }, ["num_hidden_layers is 0", "from 1 to 1024"]],
  ["a fraction of a layer", { num_hidden_layers: 9.5 }, ["num_hidden_layers is 9.5"]],
  ["a size as text", { hidden_size: "64" }, ['hidden_size is "64"']],
  ["a negative vocabulary", { vocab_size: -256 }, ["vocab_size is -256"]],
  ["too few layer types", { num_hidden_layers: 11 }, ["layer_types", "num_hidden_layers = 11"]],
  ["an unknown layer kind", { layer_types: Array(10).fill("linear_attention") }, ["linear_attention"]],
  ["no full layer at the end", { layer_types: Array(10).fill("sliding_attention") }, ["full_attention"]],
  ["a window of 0", { sliding_window: 0 }, ["sliding_window is 0"]],
  ["KV heads that do not divide the heads", { num_attention_heads: 3, num_key_value_heads: 2 }, [
    "num_key_value_heads is 2",
    "num_attention_heads = 3",
  ]],
  ["an odd head size", { head_dim: 63 }, ["head_dim is 63", "even"]],
  ["as many shared layers as layers", { num_kv_shared_layers: 10 }, ["num_kv_shared_layers is 10"]],
  ["nothing to share with", { num_kv_shared_layers: 7 }, [
    "num_kv_shared_layers is 7",
    "full layer to share",
  ]],
  ["an epsilon of 0", { rms_norm_eps: 0 }, ["rms_norm_eps is 0"]],
  ["an epsilon that is infinite in f32", { rms_norm_eps: 1e300 }, ["rms_norm_eps is 1e+300", "32 bits"]],
  ["a soft cap that is 0 in f32", { final_logit_softcapping: 1e-60 }, ["final_logit_softcapping is 1e-60"]],
  ["another activation", { hidden_activation: "relu" }, ["hidden_activation", "relu"]],
  ["bidirectional text", { use_bidirectional_attention: "all" }, ["use_bidirectional_attention", '"all"']],
  ["experts without a count", { enable_moe_block: true }, ["num_experts is null"]],
  ["more chosen experts than experts", { enable_moe_block: true, num_experts: 2, top_k_experts: 3 }, [
    "top_k_experts is 3",
  ]],
  ["an end token outside the vocabulary", { eos_token_id: 256 }, ["eos_token_id is 256", "256"]],
  ["an unknown rope", {
    rope_parameters: { full_attention: { rope_type: "yarn" }, sliding_attention: {} },
  }, ["rope_type", "yarn"]],
  ["rope for one kind only", { rope_parameters: { full_attention: {} } }, ["rope_parameters", "sliding"]],
  ["per-layer values that contradict the global ones", { per_layer_config: { "4": { head_dim: 64 } } }, [
    "global_head_dim is 128",
    "64",
  ]],
  ["per-layer values of no layer", { per_layer_config: { "10": {} } }, ["per_layer_config.10"]],
  ["the same layer twice", { per_layer_config: { "4": {}, "04": {} } }, ["per_layer_config"]],
  ["a per-layer value that cannot differ", { per_layer_config: { "4": { hidden_size: 3 } } }, [
    "hidden_size is 3",
  ]],
];
for (const [what, change, words] of WRONG) {
  Deno.test(`a config with ${what} is refused with the key and the value`, () => {
    const raw = readJson("e2b", "config.json");
    Object.assign(raw.text_config, change);
    const error = assertThrows(() => parseConfig(raw), CheckpointError);
    for (const word of words) assertStringIncludes(error.message, word);
  });
}

Deno.test("quantisation that is not of the MLX kind is refused by name", () => {
  const raw = { ...readJson("e2b", "config.json"), quantization_config: { quant_method: "gptq", bits: 4 } };
  const error = assertThrows(() => parseConfig(raw), CheckpointError);
  assertStringIncludes(error.message, '"gptq"');
});

for (
  const [bits, group, mode] of [[7, 64, "affine"], [4, 48, "affine"], [8, 32, "mxfp4"], [4, 16, "mxfp4"]]
) {
  Deno.test(`quantisation with ${bits} bits, groups of ${group} and mode ${mode} is refused`, () => {
    const raw = { ...readJson("e2b", "config.json"), quantization: { bits, group_size: group, mode } };
    assertThrows(() => parseConfig(raw), CheckpointError, "config.json: quantization.");
  });
}

Deno.test("any value in place of any key gives a typed error or a config, never another failure", () => {
  const hostile = [null, true, false, -1, 0, 0.5, 1e308, 2 ** 31, 2 ** 53, "", "x", [], [null], [[1]], {}, {
    "": 1,
  }, { "0": {} }];
  let errors = 0, configs = 0;
  for (const file of [`${folderOf("e2b")}/config.json`, `${TINY}/config.json`]) {
    const text = Deno.readTextFileSync(file);
    const whole = JSON.parse(text);
    const parts = [
      null,
      ...Object.keys(whole).filter((key) => key.endsWith("_config") && whole[key] !== null),
    ];
    for (const part of parts) {
      for (const key of Object.keys(part === null ? whole : whole[part])) {
        for (const value of hostile) {
          const raw = JSON.parse(text);
          (part === null ? raw : raw[part])[key] = value;
          try {
            parseConfig(raw);
            configs++;
          } catch (error) {
            if (!(error instanceof CheckpointError)) throw error;
            errors++;
          }
        }
      }
    }
  }
  // Both outcomes are common: many keys matter, many are not read or take these values.
  assertEquals([errors > 500, configs > 500], [true, true], `${errors} errors, ${configs} configs`);
});
