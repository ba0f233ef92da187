import { assert, assertEquals, assertRejects } from "@std/assert";
import { HubError, InvalidArgument } from "../../src/errors.ts";
import { listCache, removeCached } from "../../src/hub/inventory.ts";
import { parseReference } from "../../src/hub/reference.ts";
import { COMMIT, FakeHub, sha256, smallModel } from "./server.ts";

const remove = (hub: FakeHub, source: string) => removeCached(hub.cache, parseReference(source)!);
const NEXT = "2".repeat(40);

/** A cache with two revisions that share their weights. */
async function twoRevisions(): Promise<FakeHub> {
  const hub = await FakeHub.start();
  const next = smallModel();
  next.sha = NEXT;
  next.files["config.json"] = new TextEncoder().encode("{}");
  hub.repositories["org/model"].next = next;
  await hub.pull();
  await hub.pull("org/model@next");
  return hub;
}

Deno.test("the list shows repositories, revisions, refs and sizes, and counts shared content once", async () => {
  await using hub = await twoRevisions();
  await Deno.writeFile(`${hub.folder}/blobs/${"a".repeat(64)}.incomplete`, new Uint8Array(500));
  await Deno.mkdir(`${hub.cache}/datasets--org--data`);
  await Deno.mkdir(`${hub.cache}/models--old`); // repositories of the hub's first days have no organisation
  const [old, repository, ...others] = await listCache(hub.cache);
  assertEquals([old.repository, old.bytes, others], ["old", 0, []]);
  const { files } = smallModel();
  const size = files["config.json"].length + files["tokenizer.json"].length +
    files["model.safetensors"].length;
  assertEquals(repository.repository, "org/model");
  assertEquals(repository.bytes, size + 2 + 500);
  assertEquals(repository.incomplete, 500);
  assertEquals(repository.revisions.map(({ commit, refs, bytes, files }) => [commit, refs, bytes, files]), [
    [COMMIT, ["main"], size, 3],
    [NEXT, ["next"], size - files["config.json"].length + 2, 3],
  ]);
  assertEquals(await listCache(`${hub.cache}/none`), []);
});

Deno.test("removing a revision keeps what another one shares", async () => {
  await using hub = await twoRevisions();
  const removed = await remove(hub, "org/model@next");
  assertEquals(removed, { repository: "org/model", commits: [NEXT], freed: 2 });
  assertEquals(hub.names("snapshots"), [COMMIT]);
  assertEquals(hub.names("refs"), ["main"]);
  assert(hub.names("blobs").includes(sha256(smallModel().files["model.safetensors"])));
  hub.seen.length = 0;
  assertEquals((await hub.pull()).downloaded, 0, "the other revision is whole");
});

Deno.test("a revision is removed by the beginning of its commit, the repository by its name", async () => {
  await using hub = await twoRevisions();
  assertEquals((await remove(hub, "org/model@111111")).commits, [COMMIT]);
  await assertRejects(() => remove(hub, "org/model@111111"), HubError, "not in the cache");
  await assertRejects(() => remove(hub, "org/model/config.json"), InvalidArgument);
  await assertRejects(() => remove(hub, "org/other"), HubError, "not in the cache");
  const { bytes } = (await listCache(hub.cache))[0];
  assertEquals(await remove(hub, "org/model"), { repository: "org/model", commits: [NEXT], freed: bytes });
  assertEquals(await listCache(hub.cache), []);
});

Deno.test("what is being downloaded is not removed", async () => {
  await using hub = await twoRevisions();
  const path = `${hub.cache}/.locks/models--org--model/${"b".repeat(64)}.lock`;
  using lock = await Deno.open(path, { create: true, write: true });
  assert(await lock.tryLock(true));
  assertEquals((await assertRejects(() => remove(hub, "org/model"), HubError)).code, "in_use");
  assertEquals(hub.names("snapshots").length, 2);
});

Deno.test("hard links, which narrow permissions lead to, are counted once and removed like symbolic ones", async () => {
  await using hub = await twoRevisions();
  for (const commit of [COMMIT, NEXT]) {
    for (const name of hub.names(`snapshots/${commit}`)) {
      const path = `${hub.folder}/snapshots/${commit}/${name}`;
      const blob = await Deno.realPath(path);
      await Deno.remove(path);
      await Deno.link(blob, path);
    }
  }
  const [{ bytes }] = await listCache(hub.cache);
  assertEquals((await remove(hub, "org/model@next")).freed, 2);
  assertEquals((await listCache(hub.cache))[0].bytes, bytes - 2);
});

Deno.test("a cache without blobs, as systems without links have, is used and removed", async () => {
  await using hub = await FakeHub.start();
  const folder = `${hub.folder}/snapshots/${COMMIT}`;
  await Deno.mkdir(folder, { recursive: true });
  for (const [name, bytes] of Object.entries(smallModel().files)) {
    await Deno.writeFile(`${folder}/${name}`, bytes);
  }
  assertEquals((await hub.pull()).downloaded, 0);
  assertEquals((await listCache(hub.cache))[0].revisions[0].files, 5);
  await remove(hub, `org/model@${COMMIT}`);
  assertEquals((await listCache(hub.cache))[0].revisions, []);
});
