import { assert, assertEquals, assertMatch, assertRejects } from "@std/assert";
import {
  CheckpointError,
  DeviceError,
  InvalidArgument,
  load,
  MarkbaseError,
  MemoryLimit,
  type Progress,
  TemplateError,
} from "../../mod.ts";
import { fixtureModel, TINY } from "../support/models.ts";

/** A copy of a model folder that a test may damage. */
async function copyOf(folder: string, names?: string[]): Promise<{ path: string } & Disposable> {
  const path = await Deno.makeTempDir();
  for (const entry of Deno.readDirSync(folder)) {
    if (names && !names.includes(entry.name)) continue;
    await Deno.writeFile(`${path}/${entry.name}`, await Deno.readFile(`${folder}/${entry.name}`));
  }
  return { path, [Symbol.dispose]: () => Deno.removeSync(path, { recursive: true }) };
}

Deno.test("a model that cannot fit is refused before it is loaded, with needed and available bytes", async () => {
  const error = await assertRejects(
    () => load("tiny", { memory: 12_000_000, contextLength: 2048 }),
    MemoryLimit,
  );
  assertEquals(error.availableBytes, 12_000_000);
  assert(error.neededBytes > 12_000_000);
  assert(error.message.includes(String(error.neededBytes)) && error.message.includes("contextLength"));
  await using model = await load("tiny", { memory: error.neededBytes, contextLength: 2048 });
  const { weights, kv, activations } = model.memory();
  assert(weights + kv + activations <= error.neededBytes, `${weights} + ${kv} + ${activations} bytes`);
});

Deno.test("a byte order mark before any text file of a model is not part of it", async () => {
  const marked = async (folder: string, name: string, text?: string) => {
    text ??= await Deno.readTextFile(`${TINY}/${name}`);
    await Deno.writeTextFile(`${folder}/${name}`, "\ufeff" + text);
  };
  const messages = [{ role: "user" as const, content: "What is 27 + 45?" }];
  await using plain = await load("tiny", { device: "cpu", precision: "exact" });
  const template = await Deno.readTextFile(`${TINY}/chat_template.jinja`);
  // The template may stand in any of three files.
  for (const place of ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"]) {
    using copy = await copyOf(TINY);
    for (const name of Deno.readDirSync(TINY).map(({ name }) => name)) {
      if (name.endsWith(".json")) await marked(copy.path, name);
    }
    if (place === "chat_template.jinja") await marked(copy.path, place);
    else {
      await Deno.remove(`${copy.path}/chat_template.jinja`);
      const beside = place === "tokenizer_config.json"
        ? JSON.parse(await Deno.readTextFile(`${TINY}/${place}`))
        : {};
      await marked(copy.path, place, JSON.stringify({ ...beside, chat_template: template }));
    }
    await using model = await load(copy.path, { device: "cpu", precision: "exact" });
    assertEquals(model.config, plain.config);
    assertEquals(model.renderChat(messages), plain.renderChat(messages));
    const image = new URL("../../examples/media/circles.png", import.meta.url);
    assertEquals((await model.embedImage(image)).length, (await plain.embedImage(image)).length);
    assertEquals((await model.chat(messages, { temperature: 0 })).text, "72");
  }
});

Deno.test("a chat with a model whose template is not there, or says nothing, names the template", async () => {
  const messages = [{ role: "user" as const, content: "What is 27 + 45?" }];
  using copy = await copyOf(TINY);
  const refused = async (code: string, part: string) => {
    await using model = await load(copy.path, { device: "cpu" });
    const error = await assertRejects(() => model.chat(messages), TemplateError, part);
    assertEquals(error.code, code);
    assertEquals(
      (await model.complete("Two and two is", { temperature: 0, maxTokens: 1 })).usage.completionTokens,
      1,
    );
  };
  await Deno.writeTextFile(`${copy.path}/chat_template.jinja`, "{# nothing #}");
  await refused("template_failed", "makes nothing of the messages");
  await Deno.remove(`${copy.path}/chat_template.jinja`);
  await refused("template_missing", "nor, in a GGUF file, tokenizer.chat_template");
});

Deno.test("without a wanted context a small budget gives a shorter one, and a warning says so", async () => {
  const { neededBytes } = await assertRejects(
    () => load("tiny", { memory: 1e6, contextLength: 2048 }),
    MemoryLimit,
  );
  await using model = await load("tiny", { memory: neededBytes - 1_000_000 });
  assert(model.contextLength < 2048);
  assertEquals(model.warnings.map((warning) => warning.code), ["context_reduced"]);
});

Deno.test("a context beyond the model's own is possible but warned of", async () => {
  await using model = await load("tiny", { contextLength: 4096 });
  assertEquals(model.contextLength, 4096);
  assertEquals(model.warnings.map((warning) => warning.code), ["context_beyond_model"]);
});

Deno.test("a folder, a file, a file URL and the name of the shipped model give the same model", async () => {
  const prompt = [2, 15, 374];
  let first: Float32Array | undefined;
  for (
    const source of ["tiny", TINY, `${TINY}/model.safetensors`, new URL(`file://${TINY}`), `file://${TINY}/`]
  ) {
    await using model = await load(source);
    const logits = await model.logits(prompt);
    first ??= logits;
    assertEquals(logits, first, String(source));
  }
});

Deno.test("progress names each stage and never goes back", async () => {
  const seen: Progress[] = [];
  await using _ = await load("tiny", { onProgress: (progress) => seen.push({ ...progress }) });
  assert(seen.some(({ stage }) => stage === "compile"));
  for (const [i, { stage, completed, total }] of seen.entries()) {
    assert(completed >= 0 && completed <= total);
    if (i > 0 && seen[i - 1].stage === stage) assert(completed >= seen[i - 1].completed);
  }
});

Deno.test("a load that is aborted rejects with the signal's reason", async () => {
  const reason = new Error("no more");
  assertEquals(await load("tiny", { signal: AbortSignal.abort(reason) }).catch((error) => error), reason);
  const controller = new AbortController();
  const loading = load("tiny", {
    signal: controller.signal,
    onProgress: ({ stage }) => stage === "compile" && controller.abort(reason),
  });
  assertEquals(await loading.catch((error) => error), reason);
});

Deno.test("sources that do not exist or cannot be read yet are typed errors that say so", async () => {
  for (const source of ["/no/such/folder", "/no/such/model.safetensors", "/no/such/model.gguf"]) {
    const error = await assertRejects(() => load(source), CheckpointError);
    assert(error.message.includes(source.replace(/\/model\.[a-z]+$/, "")), error.message);
  }
  for (const source of ["~/model", "~/models/model.gguf"]) {
    const error = await assertRejects(() => load(source), CheckpointError, "Write the home folder out");
    assertEquals(error.code, "missing_file");
  }
  const remote = await assertRejects(() => load(new URL("https://example.invalid/model")), MarkbaseError);
  assertEquals(remote.code, "unsupported_source");
  assertEquals(
    (await assertRejects(() => load("https://example.invalid/model"), MarkbaseError)).code,
    remote.code,
  );
  for (const source of ["", "file:%", "file:///%", "file://elsewhere/model", null, 5, {}]) {
    await assertRejects(() => load(source as string), InvalidArgument);
  }
});

Deno.test("a device that this machine has not is a typed error that names it", async () => {
  // In a process of its own: the driver is looked for once a process, and other tests bring one of their own.
  const mod = new URL("../../mod.ts", import.meta.url);
  const { stdout } = await new Deno.Command(Deno.execPath(), {
    args: [
      "eval",
      `import { load } from "${mod}"; try { await load("tiny", { device: "cuda" }); } catch (e) { console.log(e.name, e.code, e.message); }`,
    ],
    env: { MARKBASE_LIBCUDA: "/nowhere/libcuda.so" },
  }).output();
  assertMatch(new TextDecoder().decode(stdout), /^DeviceError no_device .*cuda/i);
});

Deno.test("a norm with a NaN is found at load, and a matrix with NaN at the first reply, both by name", async () => {
  using folder = await copyOf(fixtureModel("e2b")!, ["config.json", "model.safetensors"]);
  const path = `${folder.path}/model.safetensors`;
  const good = await Deno.readFile(path);
  const length = Number(new DataView(good.buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(good.subarray(8, 8 + length)));
  const poison = async (suffix: string) => {
    const name = Object.keys(header).find((key) => key.endsWith(suffix))!;
    const bad = good.slice();
    const [begin, end] = header[name].data_offsets;
    for (let at = 8 + length + begin; at < 8 + length + end; at += 2) bad.set([0xc0, 0x7f], at); // bf16 NaN
    await Deno.writeFile(path, bad);
    return name;
  };
  const norm = await poison("layers.3.input_layernorm.weight");
  const error = await assertRejects(() => load(folder.path), CheckpointError, norm);
  assertEquals(error.code, "not_finite");

  await poison("layers.3.mlp.down_proj.weight");
  await using model = await load(folder.path, { precision: "exact" });
  const failed = await assertRejects(() => model.generate([2, 5, 9], { temperature: 0 }).next(), DeviceError);
  assertEquals(failed.code, "not_finite");
});

Deno.test("a truncated weight file is a typed error, and a missing tensor is named", async () => {
  using folder = await copyOf(fixtureModel("e2b")!, ["config.json", "model.safetensors"]);
  const path = `${folder.path}/model.safetensors`;
  const good = await Deno.readFile(path);
  for (const length of [0, 5, 100, good.length - 1]) {
    await Deno.writeFile(path, good.subarray(0, length));
    await assertRejects(() => load(folder.path), CheckpointError, "model.safetensors");
  }
  const text = new TextDecoder("latin1").decode(good);
  const renamed = Uint8Array.from(
    text.replace("layers.2.mlp.up_proj", "layers.2.mlp.xx_proj"),
    (c) => c.charCodeAt(0),
  );
  await Deno.writeFile(path, renamed);
  await assertRejects(() => load(folder.path), CheckpointError, "layers.2.mlp.up_proj");
});
