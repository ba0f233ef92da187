/** The hub in each of its bad moods; large files come from the second host. */
import { assert, assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { broken, bytesOf, COMMIT, FakeHub, part, refusal, sha256, smallModel } from "./server.ts";

const WEIGHTS = smallModel().files["model.safetensors"];
const FILE = "org/model/model.safetensors";

/** Whether the weights are installed whole, and nothing unfinished is left. */
async function assertInstalled(hub: FakeHub): Promise<void> {
  assertEquals(await Deno.readFile(`${hub.folder}/snapshots/${COMMIT}/model.safetensors`), WEIGHTS);
  assertEquals(hub.names("blobs").filter((name) => name.includes("incomplete")), []);
}

/** What an interrupted process left. */
async function leavePartial(hub: FakeHub, bytes: Uint8Array): Promise<void> {
  await Deno.mkdir(`${hub.folder}/blobs`, { recursive: true });
  await Deno.writeFile(hub.incomplete(WEIGHTS), bytes);
}

Deno.test("a body that ends early is continued where it ended", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ host, earlier, range }) => {
    if (host === "hub" || earlier > 2) return undefined;
    const from = Number(/\d+/.exec(range ?? "0")![0]);
    const body = WEIGHTS.slice(from, from + 30_000) as Uint8Array<ArrayBuffer>;
    const headers = { "content-range": `bytes ${from}-${WEIGHTS.length - 1}/${WEIGHTS.length}` };
    return new Response(body, range === null ? {} : { status: 206, headers });
  };
  await hub.pull(FILE);
  await assertInstalled(hub);
  const ranges = hub.seen.filter(({ host }) => host === "cdn").map(({ range }) => range);
  assertEquals(ranges, [null, "bytes=30000-", "bytes=60000-", "bytes=90000-"]);
});

Deno.test("a connection that is reset is continued", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ host, earlier }) => host === "cdn" && earlier === 0 ? broken(WEIGHTS, 50_000) : undefined;
  await hub.pull(FILE);
  await assertInstalled(hub);
  assertEquals(hub.downloads("model.safetensors").at(-1)!.range, "bytes=50000-");
});

Deno.test("a server that never sends anything is given up, and the error says that nothing is lost", async () => {
  await using hub = await FakeHub.start();
  await leavePartial(hub, WEIGHTS.slice(0, 1000));
  hub.hook = ({ host, range }) => host === "cdn" ? part(WEIGHTS.slice(0, 1001), range) : undefined;
  const error = await hub.failure(FILE);
  assertStringIncludes(error.message, "model.safetensors");
  hub.hook = ({ host }) => host === "cdn" ? refusal(503) : undefined;
  assertEquals((await hub.failure(FILE)).code, "unavailable");
});

Deno.test("a connection that goes silent counts as lost and is continued", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ host, earlier }) => {
    if (host === "hub" || earlier > 0) return undefined;
    const silent = new ReadableStream<Uint8Array>({
      start: (stream) => stream.enqueue(WEIGHTS.slice(0, 20_000)),
    });
    return new Response(silent, { headers: { "content-length": String(WEIGHTS.length) } });
  };
  await hub.pull(FILE, {}, { stallMilliseconds: 500 });
  await assertInstalled(hub);
  assertEquals(hub.downloads("model.safetensors").at(-1)!.range, "bytes=20000-");
});

Deno.test("a server that does not answer at all is asked again", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ host, earlier }) => host === "cdn" && earlier === 0 ? new Promise(() => {}) : undefined;
  await hub.pull(FILE, {}, { stallMilliseconds: 500 });
  await assertInstalled(hub);
});

Deno.test("a slow server is waited for as long as bytes come", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ host }) => {
    if (host === "hub") return undefined;
    let at = 0;
    const slow = new ReadableStream<Uint8Array>({
      async pull(stream) {
        await new Promise((resolve) => setTimeout(resolve, 90));
        stream.enqueue(WEIGHTS.slice(at, at += Math.ceil(WEIGHTS.length / 25)));
        if (at >= WEIGHTS.length) stream.close();
      },
    });
    return new Response(slow, { headers: { "content-length": String(WEIGHTS.length) } });
  };
  await hub.pull(FILE, {}, { stallMilliseconds: 1500 }); // 25 × 90 ms is longer than that
  await assertInstalled(hub);
  assertEquals(hub.seen.filter(({ host }) => host === "cdn").length, 1);
});

Deno.test("wrong bytes are not installed, and a good answer later is", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ host, range }) => {
    if (host === "hub") return undefined;
    const flipped = WEIGHTS.slice();
    flipped[123_456] ^= 1;
    return part(flipped, range);
  };
  const error = await hub.failure(FILE);
  assertEquals(error.code, "hash_mismatch");
  assertStringIncludes(error.message, sha256(WEIGHTS));
  assertEquals(
    hub.names("blobs").filter((name) => name.startsWith(sha256(WEIGHTS))),
    [],
    "its size is right",
  );
  await assertRejects(
    () => Deno.stat(`${hub.folder}/snapshots/${COMMIT}/model.safetensors`),
    Deno.errors.NotFound,
  );
  await assertRejects(() => Deno.stat(`${hub.folder}/refs/main`), Deno.errors.NotFound);
  hub.hook = () => undefined;
  await hub.pull(FILE);
  await assertInstalled(hub);
});

Deno.test("small files are checked against Git's hash", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ path, method, host }) =>
    host === "hub" && method === "GET" && path.endsWith("/config.json")
      ? new Response('{"model_type":"gemma3"}')
      : undefined;
  assertEquals((await hub.failure("org/model")).code, "hash_mismatch");
});

Deno.test("a partial file of an earlier process is continued; a spoilt one is replaced", async () => {
  for (const spoilt of [false, true]) {
    await using hub = await FakeHub.start();
    const start = WEIGHTS.slice(0, 150_000);
    if (spoilt) start[7] ^= 1;
    await leavePartial(hub, start);
    const pulled = await hub.pull(FILE);
    await assertInstalled(hub);
    const ranges = hub.seen.filter(({ host }) => host === "cdn").map(({ range }) => range);
    assertEquals(ranges, spoilt ? ["bytes=150000-", null] : ["bytes=150000-"]);
    if (!spoilt) assert(pulled.downloaded < 60_000, `${pulled.downloaded} bytes came`);
  }
});

Deno.test("a complete partial file is verified and installed without a request for it", async () => {
  await using hub = await FakeHub.start();
  await leavePartial(hub, WEIGHTS);
  await hub.pull(FILE);
  await assertInstalled(hub);
  assertEquals(hub.downloads("model.safetensors"), []);
});

Deno.test("a partial file that is too long or wrong at full length is fetched anew", async () => {
  for (const left of [bytesOf(WEIGHTS.length + 1), bytesOf(WEIGHTS.length, 9)]) {
    await using hub = await FakeHub.start();
    await leavePartial(hub, left);
    await hub.pull(FILE);
    await assertInstalled(hub);
  }
});

Deno.test("a server that sends everything instead of the range starts the file over", async () => {
  await using hub = await FakeHub.start();
  await leavePartial(hub, WEIGHTS.slice(0, 99_999));
  hub.hook = ({ host }) => host === "cdn" ? part(WEIGHTS, null) : undefined;
  await hub.pull(FILE);
  await assertInstalled(hub);
});

Deno.test("an answer with another range than asked for starts the file over", async () => {
  await using hub = await FakeHub.start();
  await leavePartial(hub, WEIGHTS.slice(0, 1000));
  hub.hook = ({ host, range }) => {
    if (host === "hub" || range === null) return undefined;
    const headers = { "content-range": `bytes 500-${WEIGHTS.length - 1}/${WEIGHTS.length}` };
    return new Response(WEIGHTS.slice(500) as Uint8Array<ArrayBuffer>, { status: 206, headers });
  };
  await hub.pull(FILE);
  await assertInstalled(hub);
});

Deno.test("HTTP 416 starts the file over", async () => {
  await using hub = await FakeHub.start();
  await leavePartial(hub, WEIGHTS.slice(0, 1000));
  hub.hook = ({ host, range }) => host === "cdn" && range !== null ? refusal(416) : undefined;
  await hub.pull(FILE);
  await assertInstalled(hub);
});

Deno.test("more bytes than the hub names are an error, not a longer file", async () => {
  await using hub = await FakeHub.start();
  const longer = bytesOf(WEIGHTS.length + 5000);
  hub.hook = ({ host }) => host === "cdn" ? new Response(longer) : undefined;
  assertStringIncludes((await hub.failure(FILE)).message, "longer");
  assertEquals((await Deno.stat(hub.incomplete(WEIGHTS))).size, 0);
});

Deno.test("an ETag that changes between two parts starts the file over", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ host, earlier, range }) => {
    if (host === "hub") return undefined;
    if (earlier === 0) return broken(bytesOf(WEIGHTS.length, 5), 40_000, { etag: '"old"' });
    return part(WEIGHTS, range, { etag: '"new"' });
  };
  await hub.pull(FILE);
  await assertInstalled(hub);
  assertEquals(hub.seen.filter(({ host }) => host === "cdn").map(({ range }) => range), [
    null,
    "bytes=40000-",
    null,
  ]);
});

Deno.test("a file that the hub replaces while it is downloaded is fetched as it is now", async () => {
  await using hub = await FakeHub.start();
  const now = bytesOf(170_000, 11);
  hub.hook = ({ host, earlier }) => {
    if (host === "hub" || earlier > 0) return undefined;
    hub.repositories["org/model"].main.files["model.safetensors"] = now;
    return broken(WEIGHTS, 40_000);
  };
  const pulled = await hub.pull(FILE);
  assertEquals(await Deno.readFile(pulled.path), now);
  assert(hub.names("blobs").includes(sha256(now)));
  assertEquals(
    hub.names("blobs").filter((name) => name.includes(sha256(WEIGHTS))),
    [],
    "the old part is gone",
  );
});

Deno.test("a file that changes all the time is an error", async () => {
  await using hub = await FakeHub.start();
  let seed = 20;
  hub.hook = ({ host, range }) => {
    if (host === "hub") return undefined;
    const { files } = hub.repositories["org/model"].main;
    const old = files["model.safetensors"];
    files["model.safetensors"] = bytesOf(WEIGHTS.length, seed++);
    return range === null ? broken(old, 1000) : undefined;
  };
  assertEquals((await hub.failure(FILE)).code, "changed");
});

Deno.test("the token goes to the hub and never to a host that it redirects to", async () => {
  await using hub = await FakeHub.start();
  await hub.pull("org/model", { token: "hf_secret" });
  const tokens = (
    host: string,
  ) => [...new Set(hub.seen.filter((s) => s.host === host).map(({ token }) => token))];
  assertEquals(tokens("hub"), ["Bearer hf_secret"]);
  assertEquals(tokens("cdn"), [null]);
});

Deno.test("a redirect back to the hub does not get the token either, one inside the hub does", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ host, path }) => {
    const to = (url: string) => new Response(null, { status: 307, headers: { location: url } });
    if (host === "cdn") return to(`${hub.endpoint}/back`);
    if (path === "/back") return part(WEIGHTS, null);
    if (path.startsWith("/api/models/org/old/")) return to(path.replace("old", "model"));
    return undefined;
  };
  await hub.pull("org/old", { token: "hf_secret" }).catch(() => {});
  const tokenAt = (path: string) => hub.seen.find((seen) => seen.path.startsWith(path))?.token;
  assertEquals(tokenAt("/api/models/org/model/"), "Bearer hf_secret");
  await hub.pull(FILE, { token: "hf_secret" });
  assertEquals(tokenAt("/back"), null);
});

Deno.test("redirects without end, to other schemes or nonsense are refused", async () => {
  for (const location of ["/loop", "file:///etc/passwd", "http://[bad", "ftp://example.invalid/x"]) {
    await using hub = await FakeHub.start();
    hub.hook = () => new Response(null, { status: 302, headers: { location } });
    assertEquals((await hub.failure()).code, "fetch_failed", location);
    assert(hub.seen.length < 12);
  }
});

Deno.test("429 is waited for as long as Retry-After says, in seconds, as a date, or as a rate limit", async () => {
  const inTwoMinutes = () => new Date(Date.now() + 120_000).toUTCString();
  const headers: Record<string, string>[] = [
    { "retry-after": "120" },
    { "retry-after": inTwoMinutes() },
    { ratelimit: '"api";r=0;t=120' },
  ];
  for (const header of headers) {
    await using hub = await FakeHub.start();
    hub.hook = ({ earlier }) => earlier === 0 ? refusal(429, undefined, header) : undefined;
    const waits: number[] = [];
    const wait = (milliseconds: number) => {
      waits.push(milliseconds);
      return Promise.resolve();
    };
    await hub.pull(FILE, {}, { wait });
    await assertInstalled(hub);
    assert(waits.length > 0 && waits.every((ms) => ms > 118_000 && ms <= 120_000), `waited ${waits}`);
  }
  await using hub = await FakeHub.start();
  hub.hook = () => refusal(429, undefined, { "retry-after": "86400" });
  const error = await hub.failure();
  assertEquals(error.code, "rate_limited");
  assertStringIncludes(error.message, "86400 seconds");
  assertEquals(hub.seen.length, 1, "nobody waits for a day");
});

Deno.test("pauses between attempts grow, and 5xx is an error in the end", async () => {
  await using hub = await FakeHub.start();
  hub.hook = () => refusal(502);
  const waits: number[] = [];
  const wait = (milliseconds: number) => {
    waits.push(milliseconds);
    return Promise.resolve();
  };
  assertEquals((await hub.failure("org/model", {}, { wait })).code, "unavailable");
  assertEquals(hub.seen.length, 6);
  for (const [i, ms] of waits.entries()) {
    assert(ms >= 250 * 2 ** i && ms <= 500 * 2 ** i, `pause ${i} is ${ms} ms`);
  }
});

Deno.test("refusals have a code each and say what to do", async () => {
  const cases: [() => Response, string, string][] = [
    [() => refusal(403, "GatedRepo"), "gated", "Ask for it on the model's page"],
    [() => refusal(401, "GatedRepo"), "gated", "set HF_TOKEN"],
    [() => refusal(404, "RevisionNotFound"), "revision_not_found", "org/name/FILE"],
    [() => refusal(404, "RepoNotFound"), "repository_not_found", "private"],
    [() => refusal(401, "RepoNotFound"), "repository_not_found", "private"],
    [() => refusal(401), "unauthorized", "HF_TOKEN"],
    [() => refusal(403), "forbidden", "403"],
    [() => new Response("<html>"), "invalid_answer", "JSON"],
    [() => Response.json([]), "invalid_answer", "HF_ENDPOINT"],
  ];
  for (const [answer, code, says] of cases) {
    await using hub = await FakeHub.start();
    hub.hook = answer;
    const error = await hub.failure();
    assertEquals(error.code, code);
    assertStringIncludes(error.message, says);
    assertStringIncludes(error.message, "org/model");
  }
  await using hub = await FakeHub.start();
  hub.hook = () => refusal(403, "GatedRepo");
  assertStringIncludes(
    (await hub.failure("org/model", { token: "hf_x" })).message,
    "an account that may read it",
  );
  hub.hook = ({ path }) => path.includes("/resolve/") ? refusal(403, "GatedRepo") : undefined;
  assertEquals((await hub.failure()).code, "gated", "a listing may be public where the files are not");
});

Deno.test("one file that fails ends the others at once", async () => {
  await using hub = await FakeHub.start();
  hub.hook = ({ host, path, method }) => {
    if (host === "cdn") return new Promise(() => {}); // the weights never come
    return method === "GET" && path.endsWith("/tokenizer.json") ? refusal(403) : undefined;
  };
  assertEquals((await hub.failure()).code, "forbidden");
});

Deno.test("two pulls in one process download once", async () => {
  await using hub = await FakeHub.start();
  const pulled = await Promise.all([hub.pull(), hub.pull(), hub.pull()]);
  assertEquals(new Set(pulled.map(({ path }) => path)).size, 1);
  assertEquals(hub.downloads("model.safetensors").filter(({ host }) => host === "cdn").length, 1);
  await assertInstalled(hub);
});

Deno.test({
  name: "a disk that fills up while a file is written is a typed error",
  ignore: Deno.build.os !== "linux", // needs a file that is always full
  fn: async () => {
    await using hub = await FakeHub.start();
    await leavePartial(hub, new Uint8Array());
    await Deno.remove(hub.incomplete(WEIGHTS));
    await Deno.symlink("/dev/full", hub.incomplete(WEIGHTS));
    const error = await hub.failure(FILE);
    assertEquals(error.code, "no_space");
    assertStringIncludes(error.message, hub.folder);
    // R74: with room again the same process goes on, and nothing of the failure is left.
    await Deno.remove(hub.incomplete(WEIGHTS));
    await hub.pull(FILE);
    await assertInstalled(hub);
  },
});
