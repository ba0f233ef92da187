/** Paths that are pipes or devices, or that nothing can be written to: typed errors that name them, and no waiting. */
import { assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import {
  CheckpointError,
  InvalidArgument,
  LibraryError,
  load,
  loadTokenizer,
  SessionError,
} from "../../mod.ts";
import { buildLibrary } from "../../dylib/build.ts";
import { batchFile } from "../../src/engine/batch_file.ts";
import { explain } from "../../src/engine/load.ts";
import { FolderWriter } from "../../src/convert/writer.ts";
import { MarkbaseError, TokenizerError } from "../../src/errors.ts";
import { TINY } from "../support/models.ts";

const ignore = Deno.build.os === "windows";

/** A folder for one test, and a pipe that nobody writes to in it. */
async function withPipe(work: (folder: string, pipe: string) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir();
  try {
    await makePipe(`${folder}/pipe`);
    await work(folder, `${folder}/pipe`);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

async function makePipe(path: string): Promise<void> {
  const { success } = await new Deno.Command("mkfifo", { args: [path] }).output();
  if (!success) throw new Error("mkfifo failed");
}

/** A copy of the shipped model in which one file is a pipe. */
async function modelWithPipe(folder: string, name: string): Promise<string> {
  const copy = `${folder}/${name}.model`;
  await Deno.mkdir(copy);
  for await (const entry of Deno.readDir(TINY)) {
    if (entry.name === name) await makePipe(`${copy}/${name}`);
    else await Deno.symlink(await Deno.realPath(`${TINY}/${entry.name}`), `${copy}/${entry.name}`);
  }
  return copy;
}

Deno.test({
  name: "a pipe in the place of a model's file is not waited for",
  ignore,
  async fn() {
    await withPipe(async (folder) => {
      for (const name of ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"]) {
        const model = await modelWithPipe(folder, name);
        const error = await assertRejects(() => load(model, { device: "cpu" }), MarkbaseError);
        assertStringIncludes(error.message, name);
      }
      await makePipe(`${folder}/x.gguf`);
      await assertRejects(() => load(`${folder}/x.gguf`), CheckpointError, "x.gguf is not a file");
      await assertRejects(
        () => explain(`${folder}/config.json.model`),
        CheckpointError,
        "config.json is not a file",
      );
      await assertRejects(
        () => loadTokenizer(`${folder}/tokenizer.json.model`),
        TokenizerError,
        "tokenizer.json",
      );
    });
  },
});

Deno.test({
  name: "a session is neither read from a pipe nor written where there is no folder",
  ignore,
  async fn() {
    await using model = await load(TINY, { device: "cpu" });
    await withPipe(async (folder, pipe) => {
      using session = model.session();
      await session.append([2, 5]);
      await assertRejects(() => session.restore(pipe), SessionError, "it is not a file");
      await assertRejects(() => session.restore(folder), SessionError, "it is not a file");
      await assertRejects(() => session.restore("/dev/zero"), SessionError, "it is not a file");
      for (const path of [`${folder}/none/x`, folder, `${pipe}/x`]) {
        const error = await assertRejects(() => session.save(path), SessionError);
        assertStringIncludes(error.message, path);
      }
      assertEquals((await Array.fromAsync(Deno.readDir(folder))).map(({ name }) => name), ["pipe"]);
      assertEquals([...session.ids], [2, 5]);
    });
  },
});

Deno.test({
  name: "a batch refuses devices as its file, and says where its replies cannot be written",
  ignore,
  async fn() {
    await using model = await load(TINY, { device: "cpu" });
    await withPipe(async (folder) => {
      const input = `${folder}/in.jsonl`;
      await Deno.writeTextFile(input, JSON.stringify({ custom_id: "a", prompt: "The" }) + "\n");
      await assertRejects(
        () => batchFile(model, "/dev/zero", `${folder}/out.jsonl`),
        InvalidArgument,
        "/dev/zero",
      );
      await assertRejects(
        () => batchFile(model, input, `${folder}/none/out.jsonl`),
        InvalidArgument,
        "none/out.jsonl",
      );
    });
  },
});

Deno.test("a cache folder that cannot be made is named with what to do", async () => {
  const file = await Deno.makeTempFile();
  try {
    for (const cache of [`${file}/cache`, "/dev/null"]) {
      const error = await assertRejects(() => buildLibrary({ cache }), LibraryError);
      assertEquals(error.code, "cache_unusable");
      assertStringIncludes(error.message, cache);
      assertStringIncludes(error.message, "MARKBASE_CACHE");
    }
    const writing = () => FolderWriter.create(`${file}/model`, []);
    const error = await assertRejects(writing, MarkbaseError);
    assertEquals(error.code, "not_writable");
    assertStringIncludes(error.message, `${file}/model`);
  } finally {
    await Deno.remove(file);
  }
});
