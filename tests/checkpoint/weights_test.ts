import { assertEquals, assertRejects, assertStringIncludes, assertThrows } from "@std/assert";
import { byteLength, formatName } from "../../src/checkpoint/tensor.ts";
import { openCheckpoint } from "../../src/checkpoint/open.ts";
import { CheckpointError } from "../../src/errors.ts";
import {
  type Entry,
  folderOf,
  GGUF_ROWS,
  onRow,
  openChanged,
  OWN_ROWS,
  SHARED_ROWS,
  TINY,
} from "./support.ts";

const TINY_ROWS = ["tiny/model-mlx-4bit", "tiny/drafter"];

for (const row of [...OWN_ROWS, ...SHARED_ROWS, ...TINY_ROWS, ...GGUF_ROWS.map(([row]) => row)]) {
  Deno.test({
    ...onRow(row, "every text weight has its role, shape and format, nothing is left over, all is finite"),
    async fn() {
      const { config, weights, warnings, checkFinite } = await openCheckpoint(folderOf(row));
      const { layers, embedding, lmHead, perLayerEmbedding, drafter } = weights();
      assertEquals(warnings, []);
      await checkFinite();
      const H = config.hiddenSize;
      assertEquals(embedding.shape, [config.vocabularySize, H]);
      assertEquals(lmHead, embedding);
      assertEquals(perLayerEmbedding !== null, config.perLayerInputSize > 0);
      assertEquals(drafter !== null, config.drafter !== null);
      for (const layer of config.layers) {
        const own = layers[layer.index];
        const owns = layer.kvOwner === layer.index;
        assertEquals(own.q.shape, [layer.heads * layer.headDim, H]);
        assertEquals(own.k?.shape, owns ? [layer.kvHeads * layer.headDim, H] : undefined);
        assertEquals(own.kNorm?.shape, owns ? [layer.headDim] : undefined);
        assertEquals(own.v?.shape, owns && !layer.keysAreValues ? own.k?.shape : undefined);
        assertEquals(own.down.shape, [H, layer.mlpWidth]);
        assertEquals(own.layerScalar?.shape, [1]);
        assertEquals(own.experts !== null, layer.experts !== null);
        assertEquals(
          own.perLayerInputGate?.shape,
          config.perLayerInputSize ? [config.perLayerInputSize, H] : undefined,
        );
        assertEquals(own.biases, {});
      }
    },
  });
}

Deno.test("the model that ships with the project opens, its towers are not taken for text", async () => {
  const { weights, warnings, checkFinite } = await openCheckpoint(TINY);
  assertEquals(weights().unexpected, []);
  assertEquals(warnings, []);
  await checkFinite();
});

Deno.test("e2b: the unused keys and values of the sharing layers are ignored, and may be absent", async () => {
  const { weights } = await openCheckpoint(folderOf("e2b"));
  assertEquals(weights().ignored.length, 6);
  assertEquals(
    weights().ignored.every((name) => /layers\.[89]\.self_attn\.(k_proj|v_proj|k_norm)/.test(name)),
    true,
  );
  await openChanged(
    "e2b",
    (entries) => weights().ignored.forEach((name) => delete entries[name]),
    (changed) => {
      assertEquals(changed.weights().ignored, []);
      assertEquals(changed.weights().layers[9].k, null);
    },
  );
});

for (const row of ["e2b", "e2b-mlx-4bit"]) {
  Deno.test(`${row}: each missing tensor is one sentence that names it`, async () => {
    const { tensors, weights } = await openCheckpoint(folderOf(row));
    const ignored = new Set(weights().ignored);
    for (
      const name of [...tensors.keys()].filter((name) =>
        !ignored.has(name) && /layers\.[05]\.|^[^0-9]*$/.test(name)
      )
    ) {
      await openChanged(row, (entries) => delete entries[name], (changed) => {
        const error = assertThrows(() => changed.weights(), CheckpointError);
        // Without its scales a packed weight is just a weight of the wrong shape.
        if (name.endsWith(".scales")) assertEquals(error.code, "tensor_shape");
        else {
          assertEquals(error.code, "missing_tensor");
          assertEquals(error.message.match(/\.(?=\s|$)/g)?.length, 1);
        }
        const named = name.replace(/\.scales$/, ".weight");
        // Without an embedding there is nothing to take the prefix from.
        assertStringIncludes(error.message, named.replace(/^.*(?=embed_tokens\.)/, ""));
      });
    }
  });
}

Deno.test("per-layer embeddings that a config declares and a file lacks are an error", async () => {
  const drop = (entries: Record<string, Entry>) => {
    for (const name of Object.keys(entries)) {
      if (name.includes("embed_tokens_per_layer")) delete entries[name];
    }
  };
  await openChanged("e2b", drop, (changed) => {
    const error = assertThrows(() => changed.weights(), CheckpointError);
    assertStringIncludes(error.message, '"model.language_model.embed_tokens_per_layer.weight" is missing');
  });
});

for (const scalar of ["absent", "not a number", "infinite"]) {
  Deno.test(`a layer scalar that is ${scalar} is an error that names it`, async () => {
    const name = "model.language_model.layers.7.layer_scalar";
    const change = (entries: Record<string, Entry>) => {
      if (scalar === "absent") delete entries[name];
      else entries[name].data = new Uint8Array(scalar === "infinite" ? [0x80, 0xff] : [0xc0, 0x7f]);
    };
    await openChanged("e2b", change, async (changed) => {
      const error = await assertRejects(() => changed.checkFinite(), CheckpointError, name);
      assertEquals(error.code, scalar === "absent" ? "missing_tensor" : "not_finite");
      if (scalar === "infinite") assertStringIncludes(error.message, "-Infinity");
    });
  });
}

Deno.test("a file filled with NaN is an error that names a tensor", async () => {
  const fill = (entries: Record<string, Entry>) =>
    Object.values(entries).forEach(({ data }) => data.fill(0xff));
  await openChanged("e4b", fill, async (changed) => {
    const error = await assertRejects(() => changed.checkFinite(), CheckpointError, "is NaN at element 0");
    assertEquals(error.code, "not_finite");
  });
});

Deno.test("a wrong shape names both shapes", async () => {
  const swap = (entries: Record<string, Entry>) => {
    entries["model.language_model.layers.0.mlp.down_proj.weight"].shape = [32, 128];
  };
  await openChanged("e2b", swap, (changed) => {
    const error = assertThrows(() => changed.weights(), CheckpointError);
    assertEquals(error.code, "tensor_shape");
    assertStringIncludes(error.message, "down_proj.weight");
    assertStringIncludes(error.message, "[32, 128]");
    assertStringIncludes(error.message, "[64, 64]");
  });
});

Deno.test("a weight in a type that is no weight type is an error that names both", async () => {
  const retype = (entries: Record<string, Entry>) => {
    entries["model.language_model.norm.weight"].dtype = "I16";
  };
  await openChanged("e2b", retype, (changed) => {
    assertThrows(() => changed.weights(), CheckpointError, "has dtype I16");
  });
});

Deno.test("unexpected text tensors are one warning that lists them, rotary tables and media are not", async () => {
  const extra = { dtype: "F32", shape: [1], data: new Uint8Array(4) };
  const names = [
    "model.language_model.layers.0.self_attn.sink",
    "model.language_model.layers.10.layer_scalar",
  ];
  const add = (entries: Record<string, Entry>) => {
    for (const name of names) entries[name] = extra;
    entries["model.vision_tower.std_bias"] = extra;
    entries["model.language_model.rotary_emb.inv_freq"] = extra;
  };
  await openChanged("e2b", add, (changed) => {
    changed.weights();
    changed.weights();
    assertEquals(changed.warnings.map((warning) => [warning.code, warning.names]), [[
      "unexpected_tensors",
      names,
    ]]);
  });
});

for (const prefix of ["model.", "language_model.model.", "model.language_model.model.", ""]) {
  Deno.test(`text weights under the prefix "${prefix}" have the same roles`, async () => {
    const { weights } = await openCheckpoint(folderOf("e4b"));
    const rename = (entries: Record<string, Entry>) => {
      for (const [name, entry] of Object.entries(entries)) {
        delete entries[name];
        entries[name.replace("model.language_model.", prefix)] = entry;
      }
    };
    await openChanged("e4b", rename, (changed) => {
      assertEquals(changed.weights().unexpected, []);
      assertEquals(changed.weights().layers[11].q.shape, weights().layers[11].q.shape);
      assertEquals(changed.weights().layers[3].k?.name, `${prefix}layers.3.self_attn.k_proj.weight`);
    });
  });
}

Deno.test("one weight under two prefixes is ambiguous", async () => {
  const double = (entries: Record<string, Entry>) => {
    entries["model.norm.weight"] = entries["model.language_model.norm.weight"];
  };
  await openChanged("e2b", double, (changed) => {
    assertThrows(() => changed.weights(), CheckpointError, '"model.norm.weight"');
  });
});

Deno.test("an own LM head is taken where embeddings are not tied, ignored where they are", async () => {
  const head = (entries: Record<string, Entry>) => {
    entries["lm_head.weight"] = entries["model.language_model.embed_tokens.weight"];
  };
  await openChanged("e4b", head, (changed) => {
    assertEquals(changed.weights().lmHead, changed.weights().embedding);
    assertEquals(changed.weights().ignored, ["lm_head.weight"]);
  });
  const untie = (entries: Record<string, Entry>, config: { tie_word_embeddings: boolean }) => {
    head(entries);
    config.tie_word_embeddings = false;
  };
  await openChanged("e4b", untie, (changed) => assertEquals(changed.weights().lmHead.name, "lm_head.weight"));
  await openChanged("e4b", (_, config) => config.tie_word_embeddings = false, (changed) => {
    assertThrows(() => changed.weights(), CheckpointError, 'lm_head.weight" is missing');
  });
});

Deno.test("biases are read where the config allows them and are unexpected where it does not", async () => {
  const name = "model.language_model.layers.0.self_attn.q_proj.bias";
  const add = (entries: Record<string, Entry>) => {
    entries[name] = { dtype: "BF16", shape: [128], data: new Uint8Array(256) };
  };
  await openChanged("e2b", add, (changed) => assertEquals(changed.weights().unexpected, [name]));
  const allow = (entries: Record<string, Entry>, config: { text_config: { attention_bias: boolean } }) => {
    add(entries);
    config.text_config.attention_bias = true;
  };
  await openChanged("e2b", allow, (changed) => {
    assertEquals(Object.keys(changed.weights().layers[0].biases), ["q"]);
    assertEquals(changed.weights().layers[1].biases, {});
  });
});

// Full layers of the larger models have no value projection, and some writers store one all the same.
Deno.test("where keys are values, a checkpoint loads with and without v_proj on the full layer", async () => {
  const v = "model.language_model.layers.4.self_attn.v_proj.weight";
  const mark = (config: { text_config: { attention_k_eq_v: boolean } }) =>
    config.text_config.attention_k_eq_v = true;
  await openChanged("e2b", (_, config) => mark(config), (changed) => {
    assertEquals(changed.config.layers[4].keysAreValues, true);
    assertEquals(changed.weights().layers[4].v, null);
    assertEquals(changed.weights().ignored.includes(v), true);
  });
  const drop = (entries: Record<string, Entry>, config: { text_config: { attention_k_eq_v: boolean } }) => {
    delete entries[v];
    mark(config);
  };
  await openChanged("e2b", drop, (changed) => {
    assertEquals(changed.weights().layers[4].v, null);
    assertEquals(changed.weights().layers[4].k?.shape, [128, 64]);
    assertEquals(changed.weights().layers[3].v?.shape, [64, 64]);
  });
});

Deno.test("e4b-mlx-mixed: each module has the format of its own entry", async () => {
  const { weights } = await openCheckpoint(folderOf("e4b-mlx-mixed"));
  const { embedding, perLayerEmbedding, perLayerModelProjection, layers } = weights();
  assertEquals(formatName(embedding.format), "affine6/64");
  assertEquals(embedding.shape, [256, 64]);
  assertEquals(byteLength(embedding), 256 * 12 * 4 + 2 * 256 * 2);
  assertEquals(formatName(perLayerEmbedding!.format), "affine4/128");
  assertEquals(formatName(perLayerModelProjection!.format), "bf16");
  assertEquals(formatName(layers[5].o.format), "affine8/64");
  assertEquals(formatName(layers[5].v!.format), "affine6/64");
  assertEquals(formatName(layers[5].q.format), "affine4/64");
  assertEquals(formatName(layers[0].perLayerProjection!.format), "affine4/32");
  assertEquals(layers[0].q.scaleDtype, "bf16");
});

Deno.test("module entries apply under either writer's prefix", async () => {
  const rename = (_: unknown, config: { quantization: Record<string, unknown> }) => {
    for (const [key, value] of Object.entries(config.quantization)) {
      if (!key.startsWith("language_model.model.")) continue;
      delete config.quantization[key];
      config.quantization[key.replace("language_model.model.", "model.language_model.")] = value;
    }
  };
  await openChanged("e4b-mlx-mixed", rename, (changed) => {
    assertEquals(formatName(changed.weights().embedding.format), "affine6/64");
  });
});

const MISMATCHES: [string, (entries: Record<string, Entry>, q: Record<string, unknown>) => void, string[]][] =
  [
    ["bits that do not agree with the packed width", (_, q) => q.bits = 8, [
      "[256, 8]",
      "[256, 16]",
      "affine8/64",
    ]],
    ["a group that does not agree with the scales", (_, q) => q.group_size = 32, [
      "scales",
      "[256, 1]",
      "[256, 2]",
    ]],
    ["a group that does not divide the columns", (_, q) => q.group_size = 128, ["64 columns", "affine4/128"]],
    [
      "an entry that says a quantised module was left alone",
      (_, q) => q["language_model.model.embed_tokens"] = false,
      [
        "embed_tokens",
        "has scales",
      ],
    ],
    ["no biases", (entries) => delete entries["language_model.model.embed_tokens.biases"], [
      "embed_tokens.biases",
    ]],
    [
      "codes that are not U32",
      (entries) => entries["language_model.model.embed_tokens.weight"].dtype = "I32",
      [
        "embed_tokens.weight",
        "I32",
        "U32",
      ],
    ],
    ["biases of another type than the scales", (entries) => {
      entries["language_model.model.embed_tokens.biases"].dtype = "F16";
    }, ["embed_tokens.biases", "F16", "BF16"]],
  ];
for (const [what, change, words] of MISMATCHES) {
  Deno.test(`a quantised module with ${what} is refused by name`, async () => {
    await openChanged(
      "e2b-mlx-4bit",
      (entries, config) => change(entries, config.quantization),
      (changed) => {
        const error = assertThrows(() => changed.weights(), CheckpointError);
        for (const word of words) assertStringIncludes(error.message, word);
      },
    );
  });
}

Deno.test("scales without any quantization in the config are refused", async () => {
  const strip = (_: unknown, config: Record<string, unknown>) => {
    delete config.quantization;
    delete config.quantization_config;
  };
  await openChanged("e2b-mlx-4bit", strip, (changed) => {
    assertThrows(() => changed.weights(), CheckpointError, "gives no quantization");
  });
});

Deno.test({
  ...onRow("26b-a4b-mlx-4bit", "split experts and the 8-bit router have their roles"),
  async fn() {
    const { weights } = await openCheckpoint(folderOf("26b-a4b-mlx-4bit"));
    const experts = weights().layers[2].experts!;
    assertEquals(formatName(experts.router.projection.format), "affine8/64");
    assertEquals(experts.gateUp.kind === "split" && experts.gateUp.gate.shape, [5, 64, 64]);
    assertEquals(experts.down.shape, [5, 64, 64]);
  },
});

Deno.test({
  ...onRow("26b-a4b", "fused experts have their roles"),
  async fn() {
    const { weights } = await openCheckpoint(folderOf("26b-a4b"));
    const experts = weights().layers[2].experts!;
    assertEquals(experts.gateUp.kind === "fused" && experts.gateUp.weight.shape, [5, 128, 64]);
    assertEquals(experts.router.perExpertScale.shape, [5]);
  },
});

Deno.test({
  ...onRow("assistant-e2b", "a drafter's projections, centroids and token order have their roles"),
  async fn() {
    const { weights } = await openCheckpoint(folderOf("assistant-e2b"));
    const drafter = weights().drafter!;
    assertEquals(drafter.preProjection.shape, [32, 128]);
    assertEquals(drafter.postProjection.shape, [64, 32]);
    assertEquals(drafter.centroids?.shape, [32, 32]);
    assertEquals([drafter.tokenOrdering?.dtype, drafter.tokenOrdering?.shape], ["i64", [256]]);
  },
});
