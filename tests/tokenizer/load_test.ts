import { assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { MissingPermission, TokenizerError } from "../../src/errors.ts";
import { readTokenizerFile } from "../../src/tokenizer/files.ts";
import { loadTokenizer } from "../../src/tokenizer/tokenizer.ts";

const folder = new URL("../../examples/tiny/", import.meta.url);
const path = `${import.meta.dirname}/../../examples/tiny`;

/** Serves `answer` on loopback while `use` runs. */
async function serving(
  answer: (name: string) => Response | Promise<Response>,
  use: (base: string) => Promise<void>,
) {
  const server = Deno.serve(
    { hostname: "127.0.0.1", port: 0, onListen() {} },
    (request) => answer(new URL(request.url).pathname.split("/").at(-1)!),
  );
  try {
    await use(`http://127.0.0.1:${server.addr.port}/model`);
  } finally {
    await server.shutdown();
  }
}

const file = async (name: string) => new Response(await Deno.readFile(new URL(name, folder)));

Deno.test("a tokenizer loads from a path, a file URL and over http, with or without a final slash", async () => {
  const sources: (string | URL)[] = [path, path + "/", folder, folder.href, folder.href.slice(0, -1)];
  for (const source of sources) {
    const tokenizer = await loadTokenizer(source);
    assertEquals([tokenizer.vocabularySize, tokenizer.stops.size], [1536, 3]);
  }
  await serving(file, async (base) => {
    for (const source of [base, base + "/", new URL(base)]) {
      const tokenizer = await loadTokenizer(source);
      assertEquals([tokenizer.vocabularySize, tokenizer.stops.size], [1536, 3]);
    }
  });
});

Deno.test("the two config files are optional, the tokenizer file is not", async () => {
  const only = (name: string) => (wanted: string) =>
    wanted === name ? file(name) : new Response("", { status: 404 });
  await serving(only("tokenizer.json"), async (base) => {
    const tokenizer = await loadTokenizer(base);
    assertEquals([tokenizer.bos, tokenizer.eos, [...tokenizer.stops]], [2, 1, [1]]);
  });
  await serving(only("tokenizer_config.json"), async (base) => {
    const error = await assertRejects(() => loadTokenizer(base), TokenizerError, base);
    assertEquals(error.code, "tokenizer_missing");
  });
  await assertRejects(() => loadTokenizer(path + "/nowhere"), TokenizerError, "no tokenizer.json");
});

Deno.test("a failing server, broken content and a closed port are typed errors", async () => {
  await serving(() => new Response("busy", { status: 503 }), async (base) => {
    await assertRejects(() => loadTokenizer(base), TokenizerError, "503");
  });
  await serving(
    (name) => name === "tokenizer.json" ? file(name) : new Response("{"),
    async (base) =>
      void await assertRejects(() => loadTokenizer(base), TokenizerError, "_config.json is not valid"),
  );
  let closed = "";
  await serving(file, (base) => Promise.resolve(void (closed = base)));
  const error = await assertRejects(() => loadTokenizer(closed), TokenizerError, "cannot be read");
  assertEquals(error.code, "tokenizer_read");
});

Deno.test("a file larger than the limit is refused before it is read whole", async () => {
  const name = "tokenizer.json", { size } = await Deno.stat(new URL(name, folder));
  assertEquals((await readTokenizerFile(folder, name, undefined, size))?.length, size);
  const refused = (source: string | URL) => () => readTokenizerFile(source, name, undefined, size - 1);
  await assertRejects(refused(folder), TokenizerError, `${size} bytes`);
  await serving(file, async (base) => void await assertRejects(refused(base), TokenizerError, "at most"));
  let sent = 0;
  const endless = () => {
    const pull = (controller: ReadableStreamDefaultController) => {
      sent++;
      controller.enqueue(new Uint8Array(1 << 16));
    };
    return new Response(new ReadableStream({ pull }));
  };
  await serving(endless, async (base) => void await assertRejects(refused(base), TokenizerError, "at most"));
  assertEquals(sent > 0 && sent < 1000, true);
});

Deno.test("an aborted load rejects with the signal's own reason", async () => {
  const reason = new Error("changed my mind");
  const error = await assertRejects(
    () => loadTokenizer(folder, { signal: AbortSignal.abort(reason) }),
    Error,
  );
  assertEquals(error, reason);
});

Deno.test({
  name: "a missing permission names the flag that grants it",
  permissions: { read: false, net: false },
  async fn() {
    const read = await assertRejects(() => loadTokenizer("models/some"), MissingPermission);
    assertEquals(read.flag, "--allow-read=models/some");
    const url = await assertRejects(
      () => loadTokenizer(new URL("file:///some%20models/x/")),
      MissingPermission,
    );
    assertEquals(url.flag, "--allow-read=/some models/x/");
    const net = await assertRejects(() => loadTokenizer("http://127.0.0.1:8765/x"), MissingPermission);
    assertStringIncludes(net.message, "--allow-net=127.0.0.1:8765");
  },
});
