/** What a source means, and where the environment puts the hub's cache. */
import { assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { HubError, InvalidArgument } from "../../src/errors.ts";
import { hubSettings } from "../../src/hub/settings.ts";
import { hubReference, localSource } from "../../src/hub/source.ts";
import { withEnvironment } from "../support/environment.ts";
import { deno } from "../support/process.ts";

const VARIABLES = [
  "HF_HOME",
  "HF_HUB_CACHE",
  "HUGGINGFACE_HUB_CACHE",
  "HF_TOKEN",
  "HUGGING_FACE_HUB_TOKEN",
  "HF_TOKEN_PATH",
  "HF_ENDPOINT",
  "HF_HUB_OFFLINE",
  "TRANSFORMERS_OFFLINE",
  "HF_HUB_DISABLE_IMPLICIT_TOKEN",
  "XDG_CACHE_HOME",
  "HOME",
];

/** Does `work` with these variables of the hub and no others. */
async function withEnv<T>(values: Record<string, string>, work: () => Promise<T>): Promise<T> {
  const none = Object.fromEntries(VARIABLES.map((name) => [name, undefined]));
  return await withEnvironment({ ...none, ...values }, work);
}

Deno.test("the cache is HF_HUB_CACHE, else HF_HOME/hub, else the cache option's, else the Python client's place", async () => {
  const cases: [Record<string, string>, string | undefined, string][] = [
    [{ HF_HUB_CACHE: "/a/", HF_HOME: "/b", HOME: "/h" }, "/c", "/a"],
    [{ HUGGINGFACE_HUB_CACHE: "/a", HOME: "/h" }, "/c", "/a"],
    [{ HF_HOME: "/b", HOME: "/h" }, "/c", "/b/hub"],
    [{ HF_HOME: "~/b", HOME: "/h" }, undefined, "/h/b/hub"],
    [{ HF_HOME: "b", HOME: "/h" }, undefined, `${Deno.cwd()}/b/hub`],
    [{ HOME: "/h" }, "/c", "/c/hub"],
    [{ HOME: "/h", XDG_CACHE_HOME: "/x" }, undefined, "/x/huggingface/hub"],
    [{ HOME: "/h" }, undefined, "/h/.cache/huggingface/hub"],
  ];
  for (const [env, option, folder] of cases) {
    assertEquals(
      (await withEnv(env, () => hubSettings(option))).cache,
      folder,
      JSON.stringify([env, option]),
    );
  }
  await assertRejects(() => withEnv({}, () => hubSettings()), InvalidArgument, "HF_HOME");
});

Deno.test("endpoint, offline mode and token are read as the Python client reads them", async () => {
  const read = (env: Record<string, string>) => withEnv({ HF_HOME: "/nowhere", ...env }, () => hubSettings());
  const usual = await read({});
  assertEquals([usual.endpoint.href, usual.offline, usual.token], [
    "https://huggingface.co/",
    false,
    undefined,
  ]);
  assertEquals(
    (await read({ HF_ENDPOINT: "https://mirror.example/hub/" })).endpoint.href,
    "https://mirror.example/hub",
  );
  for (const value of ["1", "true", "YES", "on"]) {
    assertEquals((await read({ HF_HUB_OFFLINE: value })).offline, true);
  }
  for (const value of ["0", "false", ""]) {
    assertEquals((await read({ HF_HUB_OFFLINE: value })).offline, false);
  }
  assertEquals((await read({ TRANSFORMERS_OFFLINE: "1" })).offline, true);
  assertEquals((await read({ HF_TOKEN: " hf_x\n" })).token, "hf_x");
  await assertRejects(() => read({ HF_TOKEN: "hf x" }), InvalidArgument, "HF_TOKEN");
  for (const wrong of ["mirror", "ftp://mirror.example"]) {
    await assertRejects(() => read({ HF_ENDPOINT: wrong }), InvalidArgument, "HF_ENDPOINT");
  }
});

Deno.test("a folder of the name wins over the hub, and what is neither says what it would have been", async () => {
  const home = await Deno.makeTempDir();
  try {
    const offline = { HF_HOME: home, HF_HUB_OFFLINE: "1" };
    const resolve = (source: string | URL) => withEnv(offline, () => localSource(source));
    assertEquals(await resolve("examples/tiny"), { path: "examples/tiny", warnings: [] });
    for (const path of ["./no/where", "/no/where", "no-where", "no/where.gguf", "no/where.safetensors"]) {
      assertEquals((await resolve(path)).path, path, "a path is left to the reader of checkpoints");
    }
    for (
      const source of [
        "no/where",
        "no/where@v1",
        "no/where/a.gguf",
        "https://huggingface.co/no/where/tree/v1",
      ]
    ) {
      const error = await assertRejects(() => resolve(source), HubError);
      assertEquals(error.code, "not_cached", source);
      assertStringIncludes(error.message, "no/where");
      const isPath = !source.includes("://");
      assertEquals(error.message.includes(`No folder or file "${source}" was found here`), isPath, source);
    }
    assertEquals(
      (await assertRejects(() => resolve("https://example.invalid/a/b"), HubError)).code,
      "unsupported_source",
    );
    for (const word of ["tiny", "/a/b", "a", "https://example.invalid/a/b"]) {
      await assertRejects(() => withEnv(offline, () => hubReference(word)), Error);
    }
  } finally {
    await Deno.remove(home, { recursive: true });
  }
});

Deno.test("a path that may be neither read nor asked of the hub names both flags", async () => {
  const script = `import { localSource } from "${new URL("../../src/hub/source.ts", import.meta.url)}";
    await localSource("org/model").catch((error) => console.log(error.name, error.message));`;
  const run = async (...flags: string[]) => {
    const env = { HF_HOME: "/nowhere", HF_ENDPOINT: "http://127.0.0.1:9" };
    return (await deno(["run", "--no-prompt", "--allow-env", ...flags, "-"], { input: script, env })).stdout;
  };
  const neither = await run();
  assertStringIncludes(neither, "MissingPermission markbase needs --allow-read=org/model to open org/model");
  assertStringIncludes(neither, "--allow-net=127.0.0.1:9");
  assertStringIncludes(
    await run("--allow-net=127.0.0.1:9"),
    "markbase needs --allow-read=/nowhere/hub to use the hub's cache",
  );
});
