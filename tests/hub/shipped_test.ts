import { assert, assertEquals, assertRejects } from "@std/assert";
import { HubError } from "../../src/errors.ts";
import { SHIPPED_FILES, shippedModel } from "../../src/hub/shipped.ts";
import { TINY } from "../support/models.ts";

/** Serves the shipped model on loopback; `damage` changes a file's bytes. */
async function serve(damage: (name: string, bytes: Uint8Array) => Uint8Array | null) {
  const requests: string[] = [];
  const server = Deno.serve({ port: 0, hostname: "127.0.0.1", onListen: () => {} }, async (request) => {
    const name = new URL(request.url).pathname.split("/").at(-1)!;
    requests.push(name);
    const bytes = damage(name, await Deno.readFile(`${TINY}/${name}`));
    return bytes === null ? new Response("gone", { status: 404 }) : new Response(bytes as BodyInit);
  });
  const cache = await Deno.makeTempDir();
  return {
    base: new URL(`http://127.0.0.1:${server.addr.port}/`),
    cache,
    requests,
    async [Symbol.asyncDispose]() {
      await server.shutdown();
      await Deno.remove(cache, { recursive: true });
    },
  };
}

Deno.test("the list of shipped files is the folder's content", async () => {
  const names = [...Deno.readDirSync(TINY)].map((entry) => entry.name).sort();
  assertEquals(SHIPPED_FILES.map((file) => file.name), names);
  for (const { name, bytes, sha256 } of SHIPPED_FILES) {
    const content = await Deno.readFile(`${TINY}/${name}`);
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
    assertEquals(content.length, bytes);
    assertEquals([...digest].map((byte) => byte.toString(16).padStart(2, "0")).join(""), sha256, name);
  }
});

Deno.test("beside local sources the model is used in place", async () => {
  assertEquals(await shippedModel(), TINY);
});

Deno.test("from a URL the model is fetched once, verified, and found in the cache afterwards", async () => {
  await using site = await serve((_, bytes) => bytes);
  const folder = await shippedModel({ base: site.base, cache: site.cache });
  assert(folder.startsWith(`${site.cache}/models/tiny-`));
  for (const { name } of SHIPPED_FILES) {
    assertEquals(await Deno.readFile(`${folder}/${name}`), await Deno.readFile(`${TINY}/${name}`));
  }
  assertEquals(site.requests.length, SHIPPED_FILES.length);
  assertEquals(await shippedModel({ base: site.base, cache: site.cache }), folder);
  assertEquals(site.requests.length, SHIPPED_FILES.length, "nothing is fetched twice");
});

Deno.test("wrong bytes or a missing file are a HubError, and nothing wrong is kept", async () => {
  let mode: "flip" | "missing" | "good" = "flip";
  await using site = await serve((name, bytes) => {
    if (name !== "model.safetensors" || mode === "good") return bytes;
    if (mode === "missing") return null;
    bytes[1000] ^= 1;
    return bytes;
  });
  const fetching = () => shippedModel({ base: site.base, cache: site.cache });
  assertEquals((await assertRejects(fetching, HubError, "SHA-256")).code, "hash_mismatch");
  mode = "missing";
  assertEquals((await assertRejects(fetching, HubError, "404")).code, "fetch_failed");
  mode = "good";
  const folder = await fetching();
  const names = [...Deno.readDirSync(folder)].map((entry) => entry.name).sort();
  assertEquals(names, SHIPPED_FILES.map((file) => file.name), "no temporary file stays");
});

Deno.test("an aborted fetch rejects with the signal's reason", async () => {
  await using site = await serve((_, bytes) => bytes);
  const reason = new Error("enough");
  const signal = AbortSignal.abort(reason);
  assertEquals(
    await shippedModel({ base: site.base, cache: site.cache, signal }).catch((error) => error),
    reason,
  );
});
