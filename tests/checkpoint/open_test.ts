import { assertEquals, assertRejects, assertStringIncludes, assertThrows } from "@std/assert";
import { parseConfig } from "../../src/checkpoint/config.ts";
import { openCheckpoint, readConfig } from "../../src/checkpoint/open.ts";
import { CheckpointError, InvalidArgument } from "../../src/errors.ts";
import { concat } from "../support/bytes.ts";
import {
  entriesOf,
  type Entry,
  folderOf,
  onRow,
  TINY,
  withFolder,
  withHeader,
  writeSafetensors,
} from "./support.ts";
import { NO_SUGGESTION } from "../support/calls.ts";

const CONFIG = Deno.readTextFileSync(`${folderOf("e2b")}/config.json`);

/** e2b in two files and an index. */
async function shardedFiles(): Promise<Record<string, string | Uint8Array>> {
  const all = Object.entries(await entriesOf("e2b"));
  const half = all.length >> 1;
  const shards = { "m-1.safetensors": all.slice(0, half), "m-2.safetensors": all.slice(half) };
  const map: Record<string, string> = {};
  const files: Record<string, string | Uint8Array> = { "config.json": CONFIG };
  for (const [file, entries] of Object.entries(shards)) {
    files[file] = writeSafetensors(Object.fromEntries(entries));
    for (const [name] of entries) map[name] = file;
  }
  files["model.safetensors.index.json"] = JSON.stringify({ metadata: {}, weight_map: map });
  return files;
}

Deno.test("a folder and its .safetensors file open alike", async () => {
  const folder = await openCheckpoint(folderOf("e2b"));
  const file = await openCheckpoint(`${folderOf("e2b")}/model.safetensors`);
  assertEquals(file.weights(), folder.weights());
  assertEquals(file.config, folder.config);
  assertEquals(folder.files.length, 1);
  assertEquals(folder.files[0].size, 1_258_076);
  assertEquals(folder.rawConfig.model_type, "gemma4");
});

Deno.test("a folder whose name ends like a file opens as the folder that it is", async () => {
  const parent = await Deno.makeTempDir();
  const folder = `${parent}/copy.safetensors`;
  try {
    await Deno.mkdir(folder);
    for (const name of ["config.json", "model.safetensors"]) {
      await Deno.copyFile(`${folderOf("e2b")}/${name}`, `${folder}/${name}`);
    }
    const opened = await openCheckpoint(folder);
    assertEquals(opened.folder, folder);
    assertEquals((await readConfig(folder)).config, opened.config);
    assertEquals((await readConfig(`${folder}/model.safetensors`)).config, opened.config);
  } finally {
    await Deno.remove(parent, { recursive: true });
  }
});

Deno.test("a sharded checkpoint gives each tensor the file it is in", async () => {
  const whole = await openCheckpoint(folderOf("e2b"));
  await withFolder(await shardedFiles(), async (folder) => {
    const sharded = await openCheckpoint(folder);
    assertEquals(sharded.files.map(({ path }) => path.slice(folder.length)), [
      "/m-1.safetensors",
      "/m-2.safetensors",
    ]);
    assertEquals(new Set([...sharded.tensors.values()].map(({ data }) => data.file)), new Set([0, 1]));
    assertEquals(
      sharded.weights().layers.map((layer) => layer.q.shape),
      whole.weights().layers.map((l) => l.q.shape),
    );
    await sharded.checkFinite();
    for (const name of whole.tensors.keys()) {
      assertEquals(await sharded.readTensor(name), await whole.readTensor(name));
    }
  });
});

Deno.test("hidden files beside the weights, as a Mac makes on other systems' disks, are not taken for weights", async () => {
  const weights = await Deno.readFile(`${folderOf("e2b")}/model.safetensors`);
  const files = {
    "config.json": CONFIG,
    "weights.safetensors": weights,
    "._weights.safetensors": "not read",
  };
  await withFolder(files, async (folder) => {
    const { files } = await openCheckpoint(folder);
    assertEquals(files.map(({ path }) => path), [`${folder}/weights.safetensors`]);
  });
});

Deno.test("config and index may begin with a byte order mark, once", async () => {
  const files = await shardedFiles();
  const names = ["config.json", "model.safetensors.index.json"];
  const marked = (mark: string) => ({
    ...files,
    ...Object.fromEntries(names.map((name) => [name, mark + files[name]])),
  });
  await withFolder(marked("\ufeff"), async (folder) => {
    const { config, tensors } = await openCheckpoint(folder);
    const whole = await openCheckpoint(folderOf("e2b"));
    assertEquals(config, whole.config);
    assertEquals(new Set(tensors.keys()), new Set(whole.tensors.keys()));
  });
  await withFolder(marked("\ufeff\ufeff"), async (folder) => {
    await assertRejects(() => openCheckpoint(folder), CheckpointError, "not valid JSON");
  });
});

/** [what is wrong, change of the files, words of the message]. */
const BROKEN_SHARDS: [string, (files: Record<string, string | Uint8Array>) => void, string[]][] = [
  ["a missing shard", (files) => delete files["m-2.safetensors"], ["m-2.safetensors", "does not exist"]],
  ["a tensor in two shards", (files) => files["m-2.safetensors"] = files["m-1.safetensors"], [
    "m-1.safetensors",
    "m-2.safetensors",
    "two files",
  ]],
  ["a tensor that no shard has", (files) => {
    const index = JSON.parse(files["model.safetensors.index.json"] as string);
    index.weight_map["extra.weight"] = "m-1.safetensors";
    files["model.safetensors.index.json"] = JSON.stringify(index);
  }, ["extra.weight", "nowhere"]],
  ["a tensor that the index leaves out", (files) => {
    const index = JSON.parse(files["model.safetensors.index.json"] as string);
    delete index.weight_map["model.language_model.norm.weight"];
    files["model.safetensors.index.json"] = JSON.stringify(index);
  }, ["model.language_model.norm.weight", "does not list"]],
  ["a path out of its folder", (files) => {
    const index = JSON.parse(files["model.safetensors.index.json"] as string);
    index.weight_map["model.language_model.norm.weight"] = "../m-1.safetensors";
    files["model.safetensors.index.json"] = JSON.stringify(index);
  }, ["../m-1.safetensors", "plain name"]],
  ["several files and no index", (files) => delete files["model.safetensors.index.json"], [
    "2 .safetensors files",
  ]],
];
for (const [what, change, words] of BROKEN_SHARDS) {
  Deno.test(`a sharded checkpoint with ${what} is refused by name`, async () => {
    const files = await shardedFiles();
    change(files);
    await withFolder(files, async (folder) => {
      const error = await assertRejects(() => openCheckpoint(folder), CheckpointError);
      for (const word of words) assertStringIncludes(error.message, word);
    });
  });
}

const BROKEN_FILES: [string, Record<string, string | Uint8Array>, string][] = [
  ["no config", { "model.safetensors": withHeader("{}") }, "config.json does not exist"],
  ["no weights", { "config.json": CONFIG }, "holds no .safetensors file"],
  ["an empty file", { "config.json": CONFIG, "model.safetensors": new Uint8Array() }, "0 bytes"],
  [
    "a header cut short",
    { "config.json": CONFIG, "model.safetensors": withHeader("{}").slice(0, 9) },
    "truncated",
  ],
  [
    "a config that is not JSON",
    { "config.json": "{", "model.safetensors": withHeader("{}") },
    "config.json is not valid",
  ],
  [
    "a config with a key twice",
    { "config.json": `{"model_type":"gemma4","model_type":"gemma4"}` },
    '"model_type" twice',
  ],
  ["a config that is a list", { "config.json": "[]" }, "not a JSON object"],
  ["a config in UTF-16", { "config.json": new Uint8Array([0xff, 0xfe, 0x7b, 0]) }, "UTF-8"],
  ["an unknown model type", { "config.json": `{"model_type":"mistral"}` }, '"mistral" is not supported'],
  ["a broken generation config", {
    "config.json": CONFIG,
    "generation_config.json": `{"eos_token_id":[1,-2]}`,
  }, "-2"],
];
for (const [what, files, words] of BROKEN_FILES) {
  Deno.test(`a folder with ${what} is refused`, async () => {
    await withFolder(files, async (folder) => {
      await assertRejects(() => openCheckpoint(folder), CheckpointError, words);
    });
  });
}

Deno.test("a source that does not exist or is another kind of file is refused by name", async () => {
  await assertRejects(
    () => openCheckpoint("/nowhere/at/all"),
    CheckpointError,
    "/nowhere/at/all/config.json",
  );
  const config = `${folderOf("e2b")}/config.json`;
  await assertRejects(
    () => openCheckpoint(config),
    CheckpointError,
    "neither a folder nor a .safetensors or .gguf file",
  );
});

Deno.test("data at an odd offset opens and reads", async () => {
  const entries: Record<string, Entry> = await entriesOf("e2b");
  const plain = writeSafetensors(entries);
  const length = Number(new DataView(plain.buffer).getBigUint64(0, true));
  const text = new TextDecoder().decode(plain.subarray(8, 8 + length));
  const odd = withHeader(text + " ".repeat(length % 2 === 0 ? 1 : 2), plain.subarray(8 + length));
  await withFolder({ "config.json": CONFIG, "model.safetensors": odd }, async (folder) => {
    const checkpoint = await openCheckpoint(folder);
    assertEquals(checkpoint.weights().embedding.parts.data.offset % 2, 1);
    const name = checkpoint.weights().finalNorm.name;
    assertEquals(await checkpoint.readTensor(name), concat([entries[name].data]));
  });
});

Deno.test({
  ...onRow("tiny/model-mlx-4bit", "its data begins at an odd offset and its index names one file"),
  async fn() {
    const { weights, files } = await openCheckpoint(folderOf("tiny/model-mlx-4bit"));
    assertEquals(files.length, 1);
    assertEquals(weights().embedding.parts.data.offset % 2, 1);
  },
});

Deno.test("the configs alone are enough for the architecture, generation defaults included", async () => {
  const { config } = await readConfig(TINY);
  assertEquals(config.tokens.eos, [1, 9, 16]);
  assertEquals(config.sampling, { ...NO_SUGGESTION, temperature: 1, topK: 64, topP: 0.95 });
  assertEquals(config.vision?.kind, "tower");
  assertEquals(config.layers.map((layer) => layer.kvOwner), [0, 1, 2, 3, 4, 5, 4, 4, 5]);
});

Deno.test("a checkpoint that says that it does not sample is greedy, whatever temperature it names", () => {
  const config = JSON.parse(CONFIG);
  const sampling = (generation: unknown) => parseConfig(config, generation).sampling;
  const named = { temperature: 0.7, top_k: 64, top_p: 0.95 };
  assertEquals(sampling({ ...named, do_sample: false }), {
    ...NO_SUGGESTION,
    temperature: 0,
    topK: 64,
    topP: 0.95,
  });
  assertEquals(sampling({ ...named, do_sample: true }).temperature, 0.7);
  assertEquals(sampling({ ...named, do_sample: null }).temperature, 0.7);
  assertEquals(sampling({}), NO_SUGGESTION);
  assertEquals(sampling({ do_sample: false, min_p: 0.1, repetition_penalty: 1.2, max_new_tokens: 77 }), {
    ...NO_SUGGESTION,
    temperature: 0,
    minP: 0.1,
    repetitionPenalty: 1.2,
    maxTokens: 77,
  });
  const wrong = {
    do_sample: "no",
    min_p: 1.1,
    repetition_penalty: 0,
    max_new_tokens: 0,
    top_p: -1,
    top_k: 0.5,
  };
  for (const [key, value] of Object.entries(wrong)) {
    assertThrows(() => sampling({ [key]: value }), CheckpointError, `generation_config.json: ${key} is`);
  }
});

Deno.test("reading an unknown tensor or one beyond the limit is a typed error", async () => {
  const checkpoint = await openCheckpoint(folderOf("e2b"));
  await assertRejects(() => checkpoint.readTensor("nothing"), CheckpointError, '"nothing"');
  const name = checkpoint.weights().embedding.name;
  checkpoint.tensors.get(name)!.data.length = 64 * 1024 * 1024 + 1;
  await assertRejects(() => checkpoint.readTensor(name), InvalidArgument, name);
});

Deno.test("without read permission the exact flag is named", async () => {
  const module = new URL("../../src/checkpoint/open.ts", import.meta.url).href;
  const script = `import { openCheckpoint } from "${module}";
    try { await openCheckpoint("/some where/model"); } catch (e) { console.log(e.name, e.message); }`;
  const file = await Deno.makeTempFile({ suffix: ".ts" });
  try {
    await Deno.writeTextFile(file, script);
    const { stdout } = await new Deno.Command(Deno.execPath(), {
      args: ["run", "--no-prompt", "--no-lock", file],
    }).output();
    const text = new TextDecoder().decode(stdout);
    assertStringIncludes(text, "MissingPermission");
    assertStringIncludes(text, '--allow-read="/some where/model"');
  } finally {
    await Deno.remove(file);
  }
});
