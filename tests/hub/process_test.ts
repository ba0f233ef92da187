/** Pulls in processes of their own: several at once, killed ones, narrow permissions, the environment. */
import { assert, assertEquals, assertMatch, assertStringIncludes } from "@std/assert";
import { COMMIT, FakeHub, smallModel } from "./server.ts";

const main = new URL("../../src/cli/main.ts", import.meta.url).pathname;
const WEIGHTS = smallModel().files["model.safetensors"];

interface Settings {
  permissions?: string[];
  env?: Record<string, string>;
}

function markbase(
  hub: FakeHub,
  args: string[],
  { permissions = ["-A"], env = {} }: Settings = {},
): Deno.ChildProcess {
  return new Deno.Command(Deno.execPath(), {
    args: ["run", "--no-prompt", ...permissions, main, ...args],
    env: {
      NO_COLOR: "1",
      HF_HOME: "",
      HF_TOKEN: "",
      HF_HUB_CACHE: hub.cache,
      HF_ENDPOINT: hub.endpoint,
      ...env,
    },
    stdin: "null",
    stdout: "piped",
    stderr: "piped",
  }).spawn();
}

async function outcome(child: Deno.ChildProcess): Promise<{ code: number; stdout: string; stderr: string }> {
  const { code, stdout, stderr } = await child.output();
  return { code, stdout: new TextDecoder().decode(stdout), stderr: new TextDecoder().decode(stderr) };
}

Deno.test("two processes that pull the same model download it once, and both have it", async () => {
  await using hub = await FakeHub.start();
  const both = [markbase(hub, ["pull", "org/model"]), markbase(hub, ["pull", "org/model"])];
  // The weights wait until both are at work on them.
  const release = Promise.withResolvers<void>();
  hub.hook = ({ path, host }) => {
    if (hub.seen.filter((seen) => seen.path.startsWith("/api/")).length === 2) release.resolve();
    if (host !== "cdn") return undefined;
    return release.promise.then(() => hub.content(path, { ...hub.seen[0], method: "GET", range: null }));
  };
  for (const { code, stdout, stderr } of await Promise.all(both.map(outcome))) {
    assertEquals([code, stdout], [0, `${hub.folder}/snapshots/${COMMIT}\n`], stderr);
  }
  assertEquals(hub.seen.filter(({ host }) => host === "cdn").length, 1);
  assertEquals(await Deno.readFile(`${hub.folder}/snapshots/${COMMIT}/model.safetensors`), WEIGHTS);
});

Deno.test("a process that is killed leaves its lock open and its part to the next", async () => {
  await using hub = await FakeHub.start();
  const half = Promise.withResolvers<void>();
  hub.hook = ({ host, earlier }) => {
    if (host === "hub" || earlier > 0) return undefined;
    const stuck = new ReadableStream<Uint8Array>({
      start(stream) {
        stream.enqueue(WEIGHTS.slice(0, 120_000));
        half.resolve();
      },
    });
    return new Response(stuck, { headers: { "content-length": String(WEIGHTS.length) } });
  };
  const child = markbase(hub, ["pull", "org/model"]);
  await half.promise;
  while ((await Deno.stat(hub.incomplete(WEIGHTS)).catch(() => null))?.size !== 120_000) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  child.kill("SIGKILL");
  await child.output();
  const { code, stderr } = await outcome(markbase(hub, ["pull", "org/model"]));
  assertEquals(code, 0, stderr);
  assertEquals(hub.downloads("model.safetensors").at(-1)!.range, "bytes=120000-");
  assertEquals(await Deno.readFile(`${hub.folder}/snapshots/${COMMIT}/model.safetensors`), WEIGHTS);
});

const ENV = "--allow-env";

Deno.test("the permissions of the README's table are enough, and each missing one is named", async () => {
  await using hub = await FakeHub.start();
  const net = `--allow-net=${hub.endpoint.slice(7)},${hub.cdn.slice(7)}`;
  const read = `--allow-read=${hub.cache},org/model`;
  const write = `--allow-write=${hub.cache}`;
  const run = (...permissions: string[]) =>
    outcome(markbase(hub, ["pull", "org/model"], { permissions: [ENV, ...permissions] }));
  for (
    const [permissions, flag] of [
      [[net, write], `--allow-read=${hub.cache}`],
      [[read, write], `--allow-net=${hub.endpoint.slice(7)}`],
      [[read, write, `--allow-net=${hub.endpoint.slice(7)}`], `--allow-net=${hub.cdn.slice(7)}`],
      [[read, net], `--allow-write=${hub.cache}`],
    ] as const
  ) {
    const { code, stderr } = await run(...permissions);
    assertEquals(code, 1, stderr);
    assertStringIncludes(stderr, `error: markbase needs ${flag} `);
  }
  const { code, stderr } = await run(net, read, write);
  assertEquals(code, 0, stderr);
  const path = `${hub.folder}/snapshots/${COMMIT}/model.safetensors`;
  assertEquals(await Deno.readFile(path), WEIGHTS);
  assert(
    !(await Deno.lstat(path)).isSymlink,
    "a hard link, for Deno grants symbolic ones to programs that may do all",
  );
  const offline = { permissions: [ENV, read], env: { HF_HUB_OFFLINE: "1" } };
  assertEquals((await outcome(markbase(hub, ["pull", "org/model"], offline))).code, 0);
});

Deno.test("pull, list and remove speak to people and to programs", async () => {
  await using hub = await FakeHub.start();
  const run = (...args: string[]) => outcome(markbase(hub, args));
  assertEquals((await run("list")).stdout, `No model is in ${hub.cache}.\n`);
  const pulled = JSON.parse((await run("pull", "org/model", "--json")).stdout);
  assertEquals(pulled.commit, COMMIT);
  assertMatch(
    (await run("pull", "org/model")).stderr,
    /org\/model at 111111111111: 3 files, 200 KB, 0 B downloaded/,
  );
  const list = (await run("list")).stdout;
  assertMatch(
    list,
    /^org\/model +1 revision +200 KB\n {2}111111111111 +main +3 files +200 KB\n200 KB in all$/m,
  );
  assertEquals(JSON.parse((await run("list", "--json")).stdout)[0].revisions[0].refs, ["main"]);
  assertEquals((await run("remove", "org/model")).stdout, "org/model: 200 KB freed\n");
  const again = await run("remove", "org/model");
  assertEquals(again.code, 1);
  assertStringIncludes(again.stderr, "not in the cache");
  assertEquals((await run("pull", "tiny")).code, 2);
  assertEquals((await run("pull")).code, 2);
  const gone = await run("pull", "org/none");
  assertEquals(gone.code, 1);
  assertStringIncludes(gone.stderr, "error: org/none: there is no such repository");
});

Deno.test("the token comes from HF_TOKEN, else from the file that the Python client's login writes", async () => {
  await using hub = await FakeHub.start();
  const home = await Deno.makeTempDir();
  try {
    await Deno.writeTextFile(`${home}/token`, "hf_file\n");
    const tokens = async (env: Record<string, string>) => {
      hub.seen.length = 0;
      const { code, stderr } = await outcome(
        markbase(hub, ["pull", "org/model"], { env: { HF_HUB_CACHE: "", ...env } }),
      );
      assertEquals(code, 0, stderr);
      return hub.seen[0].token;
    };
    assertEquals(await tokens({ HF_HOME: home }), "Bearer hf_file");
    assertEquals(await tokens({ HF_HOME: home, HF_TOKEN: "hf_env" }), "Bearer hf_env");
    assertEquals(await tokens({ HF_HOME: home, HF_HUB_DISABLE_IMPLICIT_TOKEN: "1" }), null);
    assert(
      (await Deno.stat(`${home}/hub/models--org--model/refs/main`)).isFile,
      "HF_HOME holds the cache too",
    );
  } finally {
    await Deno.remove(home, { recursive: true });
  }
});

Deno.test("load and explain take a model of the hub", async () => {
  const tiny = new URL("../../examples/tiny/", import.meta.url);
  const files: Record<string, Uint8Array> = {};
  for (const { name } of Deno.readDirSync(tiny)) files[name] = await Deno.readFile(new URL(name, tiny));
  await using hub = await FakeHub.start({ sha: COMMIT, files });
  const explained = await outcome(markbase(hub, ["explain", "org/model"]));
  assertEquals(explained.code, 0, explained.stderr);
  assertEquals(hub.names(`snapshots/${COMMIT}`), ["config.json", "generation_config.json"]);
  const args = ["generate", "What is 27 + 45?", "--temperature", "0", "--model", "org/model"];
  const answer = await outcome(markbase(hub, args));
  assertEquals([answer.code, answer.stdout], [0, "72\n"], answer.stderr);
  const offline = await outcome(
    markbase(hub, args, { env: { HF_HUB_OFFLINE: "1", HF_ENDPOINT: "http://127.0.0.1:9" } }),
  );
  assertEquals([offline.code, offline.stdout], [0, "72\n"], offline.stderr);
});
