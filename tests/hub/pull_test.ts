import { assert, assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { COMMIT, FakeHub, gitHash, refusal, sha256, smallModel } from "./server.ts";

const WEIGHTS = smallModel().files["model.safetensors"];
const CHOSEN = ["config.json", "model.safetensors", "tokenizer.json"];

Deno.test("a model is pulled into the layout that the Python client uses", async () => {
  await using hub = await FakeHub.start();
  const pulled = await hub.pull();
  assertEquals(pulled.path, `${hub.folder}/snapshots/${COMMIT}`);
  assertEquals([pulled.repository, pulled.revision, pulled.commit], ["org/model", "main", COMMIT]);
  assertEquals(hub.names(`snapshots/${COMMIT}`), CHOSEN, "no README, no second copy of the weights");
  assertEquals(await Deno.readTextFile(`${hub.folder}/refs/main`), COMMIT);
  const { files } = smallModel();
  assertEquals(
    hub.names("blobs"),
    [gitHash(files["config.json"]), sha256(WEIGHTS), gitHash(files["tokenizer.json"])].sort(),
  );
  for (const name of CHOSEN) {
    assertEquals(await Deno.readFile(`${pulled.path}/${name}`), files[name]);
    const link = await Deno.readLink(`${pulled.path}/${name}`);
    assertEquals(
      link,
      `../../blobs/${name === "model.safetensors" ? sha256(WEIGHTS) : gitHash(files[name])}`,
    );
  }
  assertEquals(pulled.files.map(({ name }) => name).sort(), CHOSEN);
  assertEquals(pulled.downloaded, pulled.files.reduce((sum, { size }) => sum + size, 0));
});

Deno.test("what is in the cache is not downloaded again, and one request tells whether it is current", async () => {
  await using hub = await FakeHub.start();
  const first = await hub.pull();
  hub.seen.length = 0;
  assertEquals(await hub.pull(), { ...first, downloaded: 0 });
  assertEquals(hub.seen.map(({ path }) => path), ["/api/models/org/model/revision/main"]);
});

Deno.test("a new commit downloads only what changed, and the old snapshot stays", async () => {
  await using hub = await FakeHub.start();
  await hub.pull();
  const next = smallModel();
  next.sha = "2".repeat(40);
  next.files["config.json"] = new TextEncoder().encode("{}");
  hub.repositories["org/model"].main = next;
  hub.seen.length = 0;
  const pulled = await hub.pull();
  assertEquals(pulled.downloaded, 2);
  assertEquals(hub.downloads("model.safetensors"), []);
  assertEquals(hub.names("snapshots"), [COMMIT, next.sha]);
  assertEquals(await Deno.readTextFile(`${hub.folder}/refs/main`), next.sha);
});

Deno.test("revisions are branches, tags, pull requests and commits", async () => {
  await using hub = await FakeHub.start();
  const other = { ...smallModel(), sha: "3".repeat(40) };
  Object.assign(hub.repositories["org/model"], { "v1.0": other, "refs/pr/7": other });
  for (
    const source of ["org/model:v1.0", "org/model@v1.0", "org/model@refs/pr/7", `org/model@${other.sha}`]
  ) {
    assertEquals((await hub.pull(source)).commit, other.sha);
  }
  assertEquals(hub.names("refs"), ["refs", "v1.0"]);
  assertEquals(await Deno.readTextFile(`${hub.folder}/refs/refs/pr/7`), other.sha);
});

Deno.test("one file is pulled alone, with the configs where it holds weights", async () => {
  await using hub = await FakeHub.start();
  const readme = await hub.pull("org/model/README.md");
  assertEquals(readme.path, `${hub.folder}/snapshots/${COMMIT}/README.md`);
  assertEquals(hub.names(`snapshots/${COMMIT}`), ["README.md"]);
  const weights = await hub.pull("org/model:main/model.safetensors");
  assertEquals(weights.path, `${hub.folder}/snapshots/${COMMIT}/model.safetensors`);
  assertEquals(hub.names(`snapshots/${COMMIT}`), ["README.md", ...CHOSEN]);
  assertEquals((await hub.failure("org/model/none.gguf")).code, "file_not_found");
});

Deno.test("only the shards that the index names are pulled", async () => {
  const commit = smallModel();
  delete commit.files["model.safetensors"];
  const shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
  const map = { weight_map: { a: shards[0], b: shards[1], c: shards[0] } };
  // as some editors write it, with a byte order mark
  commit.files["model.safetensors.index.json"] = new TextEncoder().encode("\ufeff" + JSON.stringify(map));
  for (const shard of [...shards, "consolidated.safetensors"]) commit.files[shard] = WEIGHTS.slice(0, 1000);
  await using hub = await FakeHub.start(commit);
  await hub.pull();
  assertEquals(hub.names(`snapshots/${COMMIT}`), [
    "config.json",
    ...shards,
    "model.safetensors.index.json",
    "tokenizer.json",
  ]);
  delete commit.files[shards[1]];
  const error = await hub.failure();
  assertEquals(error.code, "file_not_found");
  assertStringIncludes(error.message, shards[1]);
});

Deno.test("explaining a model pulls its configs only", async () => {
  await using hub = await FakeHub.start();
  await hub.pull("org/model", { configOnly: true });
  assertEquals(hub.names(`snapshots/${COMMIT}`), ["config.json"]);
});

Deno.test("progress counts bytes up to the total, those that are there already too", async () => {
  await using hub = await FakeHub.start();
  const { files } = smallModel();
  await hub.pull("org/model/config.json");
  const reports: number[][] = [];
  await hub.pull("org/model", { onProgress: (done, total) => reports.push([done, total]) });
  const total = CHOSEN.reduce((sum, name) => sum + files[name].length, 0);
  assertEquals(reports[0], [files["config.json"].length, total]);
  assertEquals(reports.at(-1), [total, total]);
  for (const [i, [done]] of reports.entries()) {
    assert(i === 0 || done >= reports[i - 1][0], "it never goes back");
  }
});

Deno.test("without the network the cache is used if HF_HUB_OFFLINE says so, and nothing is asked", async () => {
  await using hub = await FakeHub.start();
  assertEquals((await hub.failure("org/model", { offline: true })).code, "not_cached");
  const first = await hub.pull();
  hub.seen.length = 0;
  assertEquals(await hub.pull("org/model", { offline: true }), {
    ...first,
    downloaded: 0,
    files: first.files,
  });
  await hub.pull("org/model/config.json", { offline: true });
  await hub.pull(`org/model@${COMMIT}`, { offline: true });
  assertEquals(hub.seen, []);
  assertEquals((await hub.failure("org/model@v2", { offline: true })).code, "not_cached");
  await Deno.remove(`${first.path}/model.safetensors`);
  assertEquals((await hub.failure("org/model", { offline: true })).code, "not_cached");
});

Deno.test("a hub that cannot be reached leaves a complete copy usable, with a warning, and is an error without one", async () => {
  await using hub = await FakeHub.start();
  const first = await hub.pull();
  // A port on which nobody listens any more.
  const listener = Deno.listen({ port: 0, hostname: "127.0.0.1" });
  const endpoint = new URL(`http://127.0.0.1:${listener.addr.port}`);
  listener.close();
  const settings = { endpoint, cache: hub.cache, token: undefined, offline: false };
  const pulled = await hub.pull("org/model", { settings });
  assertEquals(pulled.path, first.path);
  assertEquals(pulled.warnings.map(({ code }) => code), ["hub_unreachable"]);
  assertEquals((await hub.failure("org/other", { settings })).code, "unreachable");
  hub.hook = () => refusal(503);
  hub.seen.length = 0;
  assertEquals((await hub.pull()).warnings.map(({ code }) => code), ["hub_unreachable"]);
  assertEquals(hub.seen.length, 2, "a copy is at hand, so nobody waits for long");
  hub.hook = () => refusal(403, "GatedRepo");
  assertEquals((await hub.failure()).code, "gated", "a refusal is no outage");
});

Deno.test("files without size or hash in the listing are asked for one by one", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ path }) => path.startsWith("/api/") ? hub.hub("GET", path, "", hub.seen[0]) : undefined; // as if nobody asked for blobs
  await hub.pull();
  assertEquals(
    hub.seen.filter(({ method }) => method === "HEAD").map(({ path }) => path.split("/").at(-1)).sort(),
    CHOSEN,
  );
  assert(
    hub.seen.every(({ host, method }) => host === "hub" || method === "GET"),
    "redirects are not followed for that",
  );
  assertEquals(hub.names(`snapshots/${COMMIT}`), CHOSEN);
});

Deno.test("an aborted pull rejects with the signal's reason and keeps what has come", async () => {
  await using hub = await FakeHub.start();
  const controller = new AbortController();
  const reason = new Error("enough");
  hub.hook = ({ host }) => {
    if (host === "hub") return undefined;
    const stream = new ReadableStream<Uint8Array>({
      start: (stream) => stream.enqueue(WEIGHTS.slice(0, 70_000)), // and then nothing
    });
    return new Response(stream, { headers: { "content-length": String(WEIGHTS.length) } });
  };
  const pulling = hub.pull("org/model/model.safetensors", {
    signal: controller.signal,
    onProgress: (done) => done > 60_000 && controller.abort(reason),
  });
  assertEquals(await pulling.catch((error) => error), reason);
  const { size } = await Deno.stat(hub.incomplete(WEIGHTS));
  assertEquals(size, 70_000);
  assertEquals(
    await hub.pull("org/model", { signal: AbortSignal.abort(reason) }).catch((error) => error),
    reason,
  );
  hub.hook = () => undefined;
  await hub.pull();
  assertEquals(hub.downloads("model.safetensors").at(-1)!.range, "bytes=70000-");
});

Deno.test("a disk without room is told before anything is downloaded", async () => {
  await using hub = await FakeHub.start();
  const freeBytes = () => Promise.resolve(100_000_000);
  hub.repositories["org/model"].main.files["model.safetensors"] = WEIGHTS;
  const small = await hub.failure("org/model", {}, { freeBytes: () => Promise.resolve(64 * 2 ** 20 + 100) });
  assertEquals(small.code, "no_space");
  assertStringIncludes(small.message, "67108964");
  assertEquals(hub.downloads("model.safetensors"), []);
  await hub.pull("org/model", {}, { freeBytes });
});

Deno.test("names that could leave their folder are refused before anything is written", async () => {
  for (
    const name of ["../../evil", "/etc/evil", "a/../../evil", "C:\\evil", "a\\..\\evil", "a//b", "evil\0"]
  ) {
    const commit = smallModel();
    commit.files[name] = new Uint8Array(3);
    await using hub = await FakeHub.start(commit);
    assertEquals((await hub.failure()).code, "unsafe_name", name);
    assertEquals([...Deno.readDirSync(hub.cache)], []);
  }
  await using hub = await FakeHub.start();
  for (const etag of ["../../evil", "", "a/b", "..", ".x"]) {
    hub.hook = ({ path }) =>
      path.startsWith("/api/")
        ? Response.json({ sha: COMMIT, siblings: [{ rfilename: "config.json", size: 1, blobId: etag }] })
        : undefined;
    assertEquals((await hub.failure("org/model/config.json")).code, "invalid_answer", etag);
  }
  hub.hook = () => Response.json({ sha: "../../evil", siblings: [] });
  assertEquals((await hub.failure()).code, "invalid_answer");
  await assertRejects(() => hub.pull("org/model/../evil"), Error, "refused");
});
