/** The cache beside the Python client itself, where `python3` has it (`pip install huggingface_hub`). */
import { assert, assertEquals } from "@std/assert";
import { listCache } from "../../src/hub/inventory.ts";
import { COMMIT, FakeHub, sha256, smallModel } from "./server.ts";

/** What a script prints, line by line. */
async function python(hub: FakeHub | null, script: string): Promise<string[] | null> {
  const env = { HF_HUB_DISABLE_TELEMETRY: "1", HF_HUB_DISABLE_XET: "1", HF_HUB_DISABLE_PROGRESS_BARS: "1" };
  const place: Record<string, string> = hub === null
    ? {}
    : { HF_ENDPOINT: hub.endpoint, HF_HUB_CACHE: hub.cache };
  try {
    const child = new Deno.Command("python3", {
      args: ["-c", script],
      env: { ...env, ...place },
      stderr: "null",
    });
    const { success, stdout } = await child.output();
    return success ? new TextDecoder().decode(stdout).trim().split("\n") : null;
  } catch {
    return null;
  }
}

const ignore = await python(null, "import huggingface_hub") === null;
const CHOSEN = ["config.json", "model.safetensors", "tokenizer.json"];

Deno.test({
  name: "what the Python client downloaded is used, online and offline, and listed",
  ignore,
  fn: async () => {
    await using hub = await FakeHub.start();
    const script = `from huggingface_hub import hf_hub_download
for name in ${JSON.stringify(CHOSEN)}: print(hf_hub_download("org/model", name))`;
    assertEquals(
      await python(hub, script),
      CHOSEN.map((name) => `${hub.folder}/snapshots/${COMMIT}/${name}`),
    );
    assertEquals(
      (await hub.pull("org/model", { offline: true })).files.map(({ name }) => name).sort(),
      CHOSEN,
    );
    assertEquals((await hub.pull()).downloaded, 0);
    const [{ repository, revisions }] = await listCache(hub.cache);
    assertEquals([repository, revisions.map(({ refs, files }) => [refs, files])], ["org/model", [[
      ["main"],
      3,
    ]]]);
  },
});

Deno.test({
  name: "what was pulled is there for the Python client, which asks for nothing again",
  ignore,
  fn: async () => {
    await using hub = await FakeHub.start();
    const { path } = await hub.pull();
    const before = hub.downloads("model.safetensors").length;
    const script = `from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download
print(hf_hub_download("org/model", "model.safetensors"))
print(snapshot_download("org/model", local_files_only=True))
info = scan_cache_dir()
print(info.size_on_disk, len(info.warnings))`;
    const [{ bytes }] = await listCache(hub.cache);
    assertEquals(await python(hub, script), [`${path}/model.safetensors`, path, `${bytes} 0`]);
    assertEquals(hub.downloads("model.safetensors").length, before);
  },
});

Deno.test({
  name: "a lock that a Python process holds is waited for",
  ignore,
  fn: async () => {
    await using hub = await FakeHub.start();
    const name = sha256(smallModel().files["model.safetensors"]);
    const folder = `${hub.cache}/.locks/models--org--model`;
    await Deno.mkdir(folder, { recursive: true });
    const script = `import sys
from huggingface_hub.utils import WeakFileLock
with WeakFileLock("${folder}/${name}.lock"):
    print("held", flush=True)
    sys.stdin.read()`;
    const child = new Deno.Command("python3", { args: ["-c", script], stdin: "piped", stdout: "piped" })
      .spawn();
    const output = child.stdout.getReader();
    await output.read();
    let done = false;
    const pulling = hub.pull().then((pulled) => {
      done = true;
      return pulled;
    });
    while (!hub.downloads("config.json").length) await new Promise((resolve) => setTimeout(resolve, 10));
    await new Promise((resolve) => setTimeout(resolve, 300));
    assert(!done, "the other process is in the way");
    assertEquals(hub.downloads("model.safetensors"), []);
    await output.cancel();
    await child.stdin.close();
    await child.status;
    await pulling;
  },
});
