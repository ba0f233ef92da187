import { assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { openCheckpoint, readConfig } from "../../src/checkpoint/open.ts";
import { CheckpointError } from "../../src/errors.ts";
import type { ModelConfig } from "../../src/checkpoint/config.ts";
import { folderOf, GGUF_ROWS, onRow, withFolder } from "./support.ts";
import { NO_SUGGESTION } from "../support/calls.ts";
import { type Content, contentOf, set, u32 } from "./gguf_content.ts";
import { writeGguf } from "./gguf_writer.ts";

/** A config without what the formats say differently: names, token roles, contexts of test files, what media need. */
function comparable(config: ModelConfig) {
  const { modelType: _m, tokens: _t, contextLength: _c, quantization: _q, bidirectional: _b, ...rest } =
    config;
  const layers = config.layers.map((layer) => ({ ...layer, mediaBlock: "" }));
  return { ...rest, layers, rmsNormEps: Math.fround(config.rmsNormEps), vision: null, audio: null };
}

for (const [row, from] of GGUF_ROWS) {
  Deno.test({
    ...onRow(row, "its metadata means the same architecture as the config of the row that it was made from"),
    async fn() {
      const { config, rawConfig, metadata } = await openCheckpoint(folderOf(row));
      assertEquals(metadata?.string("general.architecture"), "gemma4");
      assertEquals(rawConfig.model_type, "gemma4_text");
      assertEquals([config.tokens.bos, config.tokens.eos, config.tokens.pad], [2, [1], 0]);
      assertEquals((await readConfig(folderOf(row))).config, config);
      if (from === null) return;
      assertEquals(comparable(config), comparable((await openCheckpoint(folderOf(from))).config));
    },
  });
}

Deno.test("a file, its folder and a folder beside a media projector open alike", async () => {
  const bytes = await Deno.readFile(`${folderOf("tiny-gguf-iq4_nl")}/model.gguf`);
  const beside = Object.fromEntries(
    ["mmproj-some.gguf", "some-mmproj-f16.gguf", "._some.gguf"].map((name) => [name, "not read"]),
  );
  await withFolder({ "some.gguf": bytes, ...beside }, async (folder) => {
    const file = await openCheckpoint(`${folder}/some.gguf`);
    const whole = await openCheckpoint(folder);
    assertEquals(file.weights(), whole.weights());
    assertEquals(file.files, [{ path: `${folder}/some.gguf`, size: bytes.length }]);
    assertEquals(file.weights().ignored, ["rope_freqs.weight"]);
    await Deno.writeFile(`${folder}/other.gguf`, bytes);
    const error = await assertRejects(() => openCheckpoint(folder), CheckpointError);
    assertStringIncludes(error.message, "2 GGUF models: other.gguf, some.gguf");
    assertEquals((await openCheckpoint(`${folder}/other.gguf`)).config, file.config);
  });
});

/** The content in three parts, by file name. */
function parts(content: Content, change: (parts: Content[]) => void = () => {}): Record<string, Uint8Array> {
  const all = [0, 1, 2].map((part): Content => ({
    metadata: [
      ...(part === 0 ? content.metadata : []),
      ["split.no", { type: "u16", value: part }],
      ["split.count", { type: "u16", value: 3 }],
      ["split.tensors.count", { type: "i32", value: content.tensors.length }],
    ],
    tensors: content.tensors.filter((_, i) => i % 3 === part),
  }));
  change(all);
  return Object.fromEntries(all.map((part, i) => [`m-0000${i + 1}-of-00003.gguf`, writeGguf(part)]));
}

Deno.test("a model in three parts opens by its folder and by each part, with all tensors in their files", async () => {
  const content = contentOf("kq-gguf-q4_k_m");
  const whole = await openCheckpoint(folderOf("kq-gguf-q4_k_m"));
  await withFolder(parts(content), async (folder) => {
    for (const source of [folder, `${folder}/m-00001-of-00003.gguf`, `${folder}/m-00003-of-00003.gguf`]) {
      const split = await openCheckpoint(source);
      assertEquals(split.files.length, 3);
      assertEquals(comparable(split.config), comparable(whole.config));
      assertEquals(new Set([...split.tensors.values()].map(({ data }) => data.file)), new Set([0, 1, 2]));
      for (const name of whole.tensors.keys()) {
        assertEquals(await split.readTensor(name), await whole.readTensor(name), name);
      }
      await split.checkFinite();
    }
  });
});

/** [what is wrong, change of the files, words of the message]. */
const BROKEN_PARTS: [string, (files: Record<string, Uint8Array>) => void, string[]][] = [
  ["a missing part", (files) => delete files["m-00002-of-00003.gguf"], [
    "m-00002-of-00003.gguf",
    "does not exist",
  ]],
  ["two parts exchanged", (files) => files["m-00002-of-00003.gguf"] = files["m-00003-of-00003.gguf"], [
    "m-00002-of-00003.gguf",
    '"split.no" is 2',
  ]],
  [
    "a part of a larger model",
    (files) =>
      Object.assign(
        files,
        parts(contentOf("kq-gguf-q4_k_m"), ([, second]) => set(second, "split.count", u32(4))),
      ),
    ["m-00002-of-00003.gguf", '"split.count" is 4'],
  ],
  [
    "a tensor less than declared",
    (files) => Object.assign(files, parts(contentOf("kq-gguf-q4_k_m"), ([, , third]) => third.tensors.pop())),
    ['"split.tensors.count"'],
  ],
  [
    "a tensor in two parts",
    (files) =>
      Object.assign(
        files,
        parts(contentOf("kq-gguf-q4_k_m"), ([first, second]) => second.tensors.push(first.tensors[0])),
      ),
    ["two files", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf"],
  ],
];
for (const [what, change, words] of BROKEN_PARTS) {
  Deno.test(`a model in parts with ${what} is refused by name`, async () => {
    const files = parts(contentOf("kq-gguf-q4_k_m"));
    change(files);
    await withFolder(files, async (folder) => {
      const error = await assertRejects(() => openCheckpoint(folder), CheckpointError);
      for (const word of words) assertStringIncludes(error.message, word);
    });
  });
}

Deno.test("a part that lost its name, and a name without parts, are refused", async () => {
  const files = parts(contentOf("kq-gguf-q4_k_m"));
  const renamed = { "model.gguf": files["m-00001-of-00003.gguf"] };
  await withFolder(renamed, async (folder) => {
    const error = await assertRejects(() => openCheckpoint(folder), CheckpointError, "keep their names");
    assertStringIncludes(error.message, '"split.count" is 3');
  });
  for (const name of ["m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-00001-of-09999.gguf"]) {
    await assertRejects(() => openCheckpoint(`/nowhere/${name}`), CheckpointError, "names part");
  }
});

/** [what is wrong, row, change, words of the message]. */
const WRONG: [string, string, (content: Content) => void, string[]][] = [
  [
    "another architecture",
    "tiny-gguf-iq4_nl",
    (c) => set(c, "general.architecture", { type: "string", value: "llama" }),
    [
      '"llama" is not supported',
      "gemma3, gemma4",
    ],
  ],
  ["no architecture", "tiny-gguf-iq4_nl", (c) => set(c, "general.architecture", null), [
    "general.architecture",
  ]],
  ["no layers", "tiny-gguf-iq4_nl", (c) => set(c, "gemma4.block_count", null), [
    '"gemma4.block_count" is missing',
  ]],
  ["a million layers", "tiny-gguf-iq4_nl", (c) => {
    set(c, "gemma4.block_count", u32(1_000_000));
  }, ["sliding_window_pattern"]],
  [
    "a hidden size as text",
    "tiny-gguf-iq4_nl",
    (c) => set(c, "gemma4.embedding_length", { type: "string", value: "64" }),
    [
      '"gemma4.embedding_length" is "64"',
    ],
  ],
  [
    "a hidden size that the tensors do not have",
    "tiny-gguf-iq4_nl",
    (c) => set(c, "gemma4.embedding_length", u32(96)),
    [
      "token_embd.weight",
      "its metadata asks for",
    ],
  ],
  [
    "heads of values of another size",
    "tiny-gguf-iq4_nl",
    (c) => set(c, "gemma4.attention.value_length", u32(16)),
    [
      "value_length",
    ],
  ],
  ["no frequency divisors", "tiny-gguf-iq4_nl", (c) => {
    c.tensors = c.tensors.filter(({ name }) => name !== "rope_freqs.weight");
  }, ["rope_freqs.weight", "missing"]],
  ["other frequency divisors", "tiny-gguf-iq4_nl", (c) => {
    const tensor = c.tensors.find(({ name }) => name === "rope_freqs.weight")!;
    new DataView(tensor.data.buffer, tensor.data.byteOffset).setFloat32(0, 8, true);
  }, ["rope_freqs.weight", "has 8 at 0"]],
  ["a missing tensor", "tiny-gguf-iq4_nl", (c) => {
    c.tensors = c.tensors.filter(({ name }) => name !== "blk.1.ffn_up.weight");
  }, ['"blk.1.ffn_up.weight" is missing']],
  ["a norm in blocks", "tiny-gguf-iq4_nl", (c) => {
    const norm = c.tensors.find(({ name }) => name === "output_norm.weight")!;
    norm.type = 8;
    norm.data = new Uint8Array(norm.shape[0] / 32 * 34);
  }, ["output_norm.weight", "Q8_0", "F32, BF16 or F16"]],
  ["values in one of two full layers", "31b-gguf-q5_0", (c) => {
    set(c, "gemma4.attention.sliding_window_pattern", {
      type: "array",
      of: "bool",
      value: [true, true, false, true, true, false],
    });
  }, ["blk.5.attn_v.weight", "missing"]],
  ["no per-layer embeddings where the metadata declares them", "e2b-gguf-q4_0", (c) => {
    c.tensors = c.tensors.filter(({ name }) => name !== "per_layer_token_embd.weight");
  }, ['"per_layer_token_embd.weight" is missing']],
  ["MLP widths of no pattern", "e2b-gguf-q4_0", (c) => {
    set(c, "gemma4.feed_forward_length", {
      type: "array",
      of: "u32",
      value: [64, 64, 64, 64, 64, 128, 128, 64, 128, 128],
    });
  }, ["feed_forward_length", "twice as much"]],
  [
    "more experts used than there are",
    "26b-a4b-gguf-q4_0",
    (c) => set(c, "gemma4.expert_used_count", u32(9)),
    [
      "top_k_experts is 9",
    ],
  ],
];
for (const [what, row, change, words] of WRONG) {
  Deno.test({
    ...onRow(row, `a file with ${what} is refused by name`),
    async fn() {
      const content = contentOf(row);
      change(content);
      await withFolder({ "m.gguf": writeGguf(content) }, async (folder) => {
        const error = await assertRejects(
          async () => (await openCheckpoint(folder)).weights(),
          CheckpointError,
        );
        for (const word of words) assertStringIncludes(error.message, word);
      });
    },
  });
}

Deno.test("experts with gate and up in two tensors have their roles too", async () => {
  const content = contentOf("26b-a4b-gguf-q4_0");
  content.tensors = content.tensors.flatMap((tensor) => {
    const match = /^(blk\.\d+\.ffn_)gate_up_exps\.weight$/.exec(tensor.name);
    if (match === null) return [tensor];
    const [experts, rows, columns] = tensor.shape;
    const half = rows / 2 * columns / 32 * 18; // bytes of the gate's rows of one expert
    const pick = (first: number) => {
      const data = new Uint8Array(experts * half);
      for (let e = 0; e < experts; e++) {
        data.set(tensor.data.subarray((2 * e + first) * half, (2 * e + first + 1) * half), e * half);
      }
      return data;
    };
    const shape = [experts, rows / 2, columns];
    return [
      { ...tensor, name: `${match[1]}gate_exps.weight`, shape, data: pick(0) },
      { ...tensor, name: `${match[1]}up_exps.weight`, shape, data: pick(1) },
    ];
  });
  await withFolder({ "m.gguf": writeGguf(content) }, async (folder) => {
    const split = (await openCheckpoint(folder)).weights();
    assertEquals(split.unexpected, []);
    const { experts } = split.layers[0];
    assertEquals(experts!.gateUp.kind, "split");
    assertEquals(experts!.down.format, { kind: "gguf", type: "q5_1" });
  });
});

Deno.test("a file without a vocabulary, and one that adds no BOS, say so in the config", async () => {
  const content = contentOf("tiny-gguf-iq4_nl");
  await withFolder({ "m.gguf": writeGguf(content) }, async (folder) => {
    assertEquals((await openCheckpoint(folder)).config.tokens.bos, 2);
  });
  set(content, "tokenizer.ggml.add_bos_token", { type: "bool", value: false });
  set(content, "tokenizer.ggml.eos_token_id", u32(7));
  set(content, "tokenizer.ggml.eot_token_id", u32(5));
  await withFolder({ "m.gguf": writeGguf(content) }, async (folder) => {
    const { tokens } = (await openCheckpoint(folder)).config;
    assertEquals([tokens.bos, tokens.eos], [null, [5, 7]]);
  });
});

Deno.test("what a file suggests for sampling is read as generation_config.json is", async () => {
  const content = contentOf("tiny-gguf-iq4_nl");
  await withFolder({ "m.gguf": writeGguf(content) }, async (folder) => {
    assertEquals((await openCheckpoint(folder)).config.sampling, NO_SUGGESTION);
  });
  set(content, "general.sampling.temp", { type: "f32", value: 0.75 });
  set(content, "general.sampling.top_k", { type: "i32", value: 64 });
  set(content, "general.sampling.top_p", { type: "f32", value: 0.5 });
  set(content, "general.sampling.min_p", { type: "f32", value: 0.125 });
  set(content, "general.sampling.penalty_repeat", { type: "f32", value: 1.25 });
  set(content, "tokenizer.ggml.suppress_tokens", { type: "array", of: "i32", value: [9, 7] });
  await withFolder({ "m.gguf": writeGguf(content) }, async (folder) => {
    const { sampling, tokens } = (await openCheckpoint(folder)).config;
    assertEquals(tokens.suppressed, [7, 9]);
    assertEquals(sampling, {
      temperature: 0.75,
      topK: 64,
      topP: 0.5,
      minP: 0.125,
      repetitionPenalty: 1.25,
      maxTokens: null,
    });
  });
  set(content, "general.sampling.top_p", { type: "f32", value: 1.5 });
  await withFolder({ "m.gguf": writeGguf(content) }, async (folder) => {
    await assertRejects(() => openCheckpoint(folder), CheckpointError, "m.gguf: top_p is 1.5");
  });
});
