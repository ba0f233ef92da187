/** Gemma 3 beside the golden rows: the same weights in a GGUF file, norms that miss their one, a shipped vocabulary that cannot be used. */
import { assert, assertEquals, assertRejects, assertStringIncludes, assertThrows } from "@std/assert";
import { load } from "../../mod.ts";
import { openCheckpoint } from "../../src/checkpoint/open.ts";
import { TokenizerError } from "../../src/errors.ts";
import { entriesOf, folderOf, openChanged, withFolder } from "../checkpoint/support.ts";
import { type TensorEntry, type Value, writeGguf } from "../checkpoint/gguf_writer.ts";
import { converted, tensorsOf } from "../convert/support.ts";
import { EXACT } from "../support/calls.ts";
import { maxDifference, readGolden } from "../support/models.ts";

const u32 = (value: number): Value => ({ type: "u32", value });
const f32 = (value: number): Value => ({ type: "f32", value });

/** Metadata that the usual converter writes for the fixture; it leaves the sliding layers' base and pattern to the reader. */
const METADATA: [string, Value][] = [
  ["general.architecture", { type: "string", value: "gemma3" }],
  ["gemma3.context_length", u32(4096)],
  ["gemma3.embedding_length", u32(64)],
  ["gemma3.block_count", u32(7)],
  ["gemma3.feed_forward_length", u32(32)],
  ["gemma3.attention.head_count", u32(2)],
  ["gemma3.attention.head_count_kv", u32(1)],
  ["gemma3.attention.layer_norm_rms_epsilon", f32(1e-6)],
  ["gemma3.attention.key_length", u32(32)],
  ["gemma3.attention.value_length", u32(32)],
  ["gemma3.attention.sliding_window", u32(32)],
  ["gemma3.attention.scale", f32(48 ** -0.5)],
  ["gemma3.rope.freq_base", f32(1_000_000)],
  ["gemma3.rope.scaling.type", { type: "string", value: "linear" }],
  ["gemma3.rope.scaling.factor", f32(8)],
  ["tokenizer.ggml.bos_token_id", u32(2)],
  ["tokenizer.ggml.eos_token_id", u32(1)],
  ["tokenizer.ggml.eot_token_id", u32(106)],
];

const IN_LAYER: Record<string, string> = {
  input_layernorm: "attn_norm",
  "self_attn.q_proj": "attn_q",
  "self_attn.k_proj": "attn_k",
  "self_attn.v_proj": "attn_v",
  "self_attn.q_norm": "attn_q_norm",
  "self_attn.k_norm": "attn_k_norm",
  "self_attn.o_proj": "attn_output",
  post_attention_layernorm: "post_attention_norm",
  pre_feedforward_layernorm: "ffn_norm",
  "mlp.gate_proj": "ffn_gate",
  "mlp.up_proj": "ffn_up",
  "mlp.down_proj": "ffn_down",
  post_feedforward_layernorm: "post_ffw_norm",
};

/** The fixture's tensors as the converter writes them: its names, matrices in bf16, norms with their one in f32. */
async function ggufTensors(): Promise<TensorEntry[]> {
  return Object.entries(await entriesOf("gemma3")).map(([name, { shape, data }]): TensorEntry => {
    const path = name.replace(/^model\./, "").replace(/\.weight$/, "");
    const layer = /^layers\.(\d+)\.(.+)$/.exec(path);
    const renamed = layer
      ? `blk.${layer[1]}.${IN_LAYER[layer[2]]}`
      : path === "embed_tokens"
      ? "token_embd"
      : "output_norm";
    if (shape.length > 1) return { name: `${renamed}.weight`, shape, type: 30, data };
    const view = new DataView(data.buffer, data.byteOffset);
    const word = new DataView(new ArrayBuffer(4));
    const shifted = Float32Array.from({ length: shape[0] }, (_, i) => {
      word.setUint16(0, view.getUint16(2 * i, true));
      return word.getFloat32(0) + 1;
    });
    return { name: `${renamed}.weight`, shape, type: 0, data: new Uint8Array(shifted.buffer) };
  });
}

Deno.test("gemma3: the same weights in a GGUF file give the same logits", async () => {
  const folder = folderOf("gemma3");
  const { prompts } = await readGolden(folder);
  const file = writeGguf({ metadata: METADATA, tensors: await ggufTensors() });
  await withFolder({ "model.gguf": file }, async (path) => {
    await using gguf = await load(`${path}/model.gguf`, EXACT);
    await using plain = await load(folder, EXACT);
    const differing = gguf.config.layers.filter((layer, i) =>
      JSON.stringify(layer) !== JSON.stringify(plain.config.layers[i])
    );
    assertEquals(differing, []);
    assertEquals([gguf.config.normWeightOffset, plain.config.normWeightOffset], [0, 1]);
    assertEquals(gguf.config.tokens.eos, plain.config.tokens.eos);
    assert(Math.abs(gguf.config.attentionScale - plain.config.attentionScale) < 1e-8);
    assertEquals(gguf.memory().copied, 0);
    for (const { input_ids: ids } of prompts) {
      const [a, b] = [await gguf.logits(ids, { last: 8 }), await plain.logits(ids, { last: 8 })];
      // The factor of the scores and the epsilon are f32 in this file.
      assert(maxDifference(a, b) < 1e-4, `difference ${maxDifference(a, b)}`);
    }
  });
});

Deno.test("gemma3: norms that are stored without their one are copied in f32, and memory() says how much", async () => {
  const { weights } = await openCheckpoint(folderOf("gemma3"));
  assertEquals([weights().layers[0].qNorm.addend, weights().layers[0].q.addend], [1, undefined]);
  await using model = await load(folderOf("gemma3"), EXACT);
  // Per layer four norms of 64 and two of 32, and the last norm: each at a multiple of 256 bytes.
  const last = 64 * 4;
  assertEquals(model.memory().copied, (7 * (4 + 2) + 1 - 1) * 256 + last);
});

Deno.test("gemma3: a file that lost its norms' offset, or one that has none to lose, is not the same model", async () => {
  const { prompts } = await readGolden(folderOf("gemma3"));
  const tensors = await ggufTensors();
  const norm = tensors.find(({ name }) => name === "output_norm.weight")!;
  norm.data = new Uint8Array(Float32Array.from(new Float32Array(norm.data.buffer), (x) => x - 1).buffer);
  await withFolder({ "model.gguf": writeGguf({ metadata: METADATA, tensors }) }, async (path) => {
    await using gguf = await load(path, EXACT);
    await using plain = await load(folderOf("gemma3"), EXACT);
    const [a, b] = [await gguf.logits(prompts[0].input_ids), await plain.logits(prompts[0].input_ids)];
    assert(maxDifference(a, b) > 0.1);
  });
});

Deno.test("gemma3: with names of the multimodal class and its towers, the text part is the same", async () => {
  const entries = await entriesOf("gemma3");
  const { prompts } = await readGolden(folderOf("gemma3"));
  await openChanged("gemma3", (changed, config) => {
    for (const [name, entry] of Object.entries(entries)) {
      delete changed[name];
      changed[`language_model.${name}`] = entry;
    }
    const tower = { dtype: "F32", shape: [1], data: new Uint8Array(4) };
    changed["vision_tower.vision_model.post_layernorm.weight"] = tower;
    changed["multi_modal_projector.mm_soft_emb_norm.weight"] = { ...tower };
    const { model_type: _, ...text } = config;
    for (const key of Object.keys(text)) delete config[key];
    Object.assign(config, { model_type: "gemma3", text_config: text, eos_token_id: [1, 106] });
  }, async ({ folder, config, weights }) => {
    assertEquals([config.modelType, config.vision], ["gemma3", null]);
    assertEquals(weights().unexpected, []);
    await using a = await load(folder, EXACT);
    await using b = await load(folderOf("gemma3"), EXACT);
    assertEquals(await a.logits(prompts[0].input_ids), await b.logits(prompts[0].input_ids));
  });
});

Deno.test("a vocabulary in the file that cannot be used leaves a model of token ids, a warning and a typed error", async () => {
  await using model = await load(`${folderOf("tiny-gguf-iq4_nl")}/model.gguf`, { device: "cpu" });
  assertEquals(model.warnings.map(({ code }) => code), ["tokenizer_unusable"]);
  assertStringIncludes(model.warnings[0].message, '"t", which is not in the vocabulary');
  const error = assertThrows(() => model.tokenizer, TokenizerError);
  assertEquals([error.code, error.message], ["tokenizer_unusable", model.warnings[0].message]);
  assertEquals((await assertRejects(() => model.complete("t4"), TokenizerError)).code, "tokenizer_unusable");
  assertEquals((await model.logits([2, 13, 65])).length, model.config.vocabularySize);
});

Deno.test("gemma3: a GGUF file and a folder with the same weights are quantised to the same codes", async () => {
  const file = writeGguf({ metadata: METADATA, tensors: await ggufTensors() });
  await withFolder({ "model.gguf": file }, async (path) => {
    await using fromGguf = await converted(`${path}/model.gguf`);
    await using fromFolder = await converted(folderOf("gemma3"));
    const [a, b] = [await tensorsOf(fromGguf.folder), await tensorsOf(fromFolder.folder)];
    assertEquals([...a.keys()].sort(), [...b.keys()].sort());
    for (const [name, { dtype, bytes }] of b) {
      if (dtype !== "BF16" || a.get(name)!.dtype === dtype) assertEquals(a.get(name)!.bytes, bytes, name);
    }
    const [one, other] = await Promise.all([load(fromGguf.folder, EXACT), load(fromFolder.folder, EXACT)]);
    await using _one = one, _other = other;
    assertEquals(
      one.config.normWeightOffset,
      1,
      "its norms are written without their one, as the config says",
    );
    const { prompts: [{ input_ids: ids }] } = await readGolden(folderOf("gemma3"));
    const difference = maxDifference(
      await one.logits(ids, { last: 8 }),
      await other.logits(ids, { last: 8 }),
    );
    assert(difference < 1e-3, `difference ${difference}`);
  });
});

Deno.test("a chat template in chat_template.json is found", async () => {
  const tiny = new URL("../../examples/tiny/", import.meta.url);
  await withFolder({}, async (folder) => {
    for await (const { name } of Deno.readDir(tiny)) {
      if (name !== "chat_template.jinja") await Deno.copyFile(new URL(name, tiny), `${folder}/${name}`);
    }
    const template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    await Deno.writeTextFile(`${folder}/chat_template.json`, JSON.stringify({ chat_template: template }));
    await using model = await load(folder, { device: "cpu" });
    assertEquals(model.renderChat([{ role: "user", content: "Hi" }]), "<bos>user: Hi\n");
  });
});
