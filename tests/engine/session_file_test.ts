/** Sessions that are saved and restored. */
import { assertEquals, assertRejects } from "@std/assert";
import { Pass } from "../../ffi/pass.ts";
import { Disposed, InvalidArgument, load, SessionError } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import { EXACT, idsOf } from "../support/calls.ts";
import { fixtureModel } from "../support/models.ts";

const GREEDY = { temperature: 0, ignoreEos: true } as const;

Deno.test("a saved session restores into the same or another load and goes on as if never left", async () => {
  const folder = await Deno.makeTempDir();
  const path = `${folder}/session`;
  try {
    for (const name of ["e2b", "e4b-mlx-mixed"]) {
      let expected: number[];
      {
        await using model = await load(fixtureModel(name)!, EXACT);
        using session = model.session();
        await session.append(idsOf(100));
        await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 7 }));
        await session.save(path);
        expected = await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 9 }));
        using same = model.session();
        await same.append([5, 6, 7]);
        await same.restore(path);
        assertEquals(await Array.fromAsync(same.generate({ ...GREEDY, maxTokens: 9 })), expected);
      }
      await using again = await loadWith(fixtureModel(name)!, EXACT, {});
      using session = again.session();
      await session.restore(path);
      assertEquals(session.ids.length, 107);
      const { rows } = again.engine.forward.counts;
      assertEquals(await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 9 })), expected);
      assertEquals(again.engine.forward.counts.rows - rows, 9, "nothing restored is computed again");
    }
    assertEquals(
      [...Deno.readDirSync(folder)].map((entry) => entry.name),
      ["session"],
      "no temporary file stays",
    );
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("a session whose prompt was cut off by an abort can be saved, restored and continued", async () => {
  const path = await Deno.makeTempFile();
  try {
    await using model = await loadWith(fixtureModel("e2b")!, EXACT, { chunkRows: 64, keptPrefixes: 0 });
    using session = model.session();
    await session.append(idsOf(1000));
    const { run } = Pass.prototype;
    let runs = 0;
    Pass.prototype.run = function (...args) {
      return ++runs === 5 ? Promise.reject(new Error("cut off")) : run.apply(this, args);
    };
    await assertRejects(() => session.generate(GREEDY).next(), Error, "cut off");
    Pass.prototype.run = run;
    await session.save(path);
    using restored = model.session();
    await restored.restore(path);
    const { rows } = model.engine.forward.counts;
    const options = { ...GREEDY, maxTokens: 5 };
    const ids = await Array.fromAsync(restored.generate(options));
    assertEquals(model.engine.forward.counts.rows - rows, 1000 - 4 * 64 + 4);
    assertEquals(ids, await Array.fromAsync(session.generate(options)));
    assertEquals(ids, await Array.fromAsync(model.generate(idsOf(1000), options)));
  } finally {
    await Deno.remove(path);
  }
});

Deno.test("a damaged, foreign or missing session file is a typed error and leaves the session as it was", async () => {
  const folder = await Deno.makeTempDir();
  const path = `${folder}/session`;
  try {
    await using model = await loadWith(fixtureModel("e2b")!, EXACT, { keptPrefixes: 0 });
    using session = model.session();
    await session.append(idsOf(60));
    await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 3 }));
    await session.save(path);
    const good = await Deno.readFile(path);
    const ids = session.ids;
    const used = model.memory().kvUsed;
    const expectCode = async (bytes: Uint8Array, code: string) => {
      await Deno.writeFile(path, bytes);
      const error = await assertRejects(() => session.restore(path), SessionError);
      assertEquals(error.code, code);
      assertEquals(session.ids, ids);
      assertEquals(model.memory().kvUsed, used);
    };
    for (const length of [0, 7, 11, 40, good.length - 33, good.length - 1]) {
      await expectCode(good.subarray(0, length), "session_damaged");
    }
    await expectCode(new Uint8Array([...good, 0]), "session_damaged");
    for (const at of [0, 9, good.length - 5, good.length - 5000, good.length >> 1]) {
      const bad = good.slice();
      bad[at] ^= 1;
      await expectCode(bad, "session_damaged");
    }
    await expectCode(new TextEncoder().encode("MBSESSN1 and then something else"), "session_damaged");

    await Deno.writeFile(path, good);
    await using other = await load(fixtureModel("e4b")!, EXACT);
    using foreign = other.session();
    assertEquals((await assertRejects(() => foreign.restore(path), SessionError)).code, "session_model");
    await using half = await load(fixtureModel("e2b")!, { ...EXACT, kvCache: "f16" });
    using converted = half.session();
    assertEquals((await assertRejects(() => converted.restore(path), SessionError)).code, "session_format");
    const missing = await assertRejects(() => session.restore(`${folder}/none`), SessionError);
    assertEquals(missing.code, "session_missing");
    await session.restore(path);
    assertEquals(session.ids, ids);
    assertEquals(
      (await assertRejects(() => session.restore(folder), SessionError)).code,
      "session_unreadable",
    );
    for (const place of [folder, `${folder}/none/session`]) {
      const error = await assertRejects(() => session.save(place), SessionError, place);
      assertEquals(error.code, "session_unwritable");
    }
    const twin = `${folder}/twin`;
    await Deno.symlink("/dev/null", twin);
    const refused = await assertRejects(() => session.save(twin), SessionError, "no file");
    assertEquals(refused.code, "session_unwritable");
    await Deno.remove(twin);
    for (const place of ["", null, 5, new URL("file:///session")]) {
      await assertRejects(() => session.save(place as string), InvalidArgument);
      await assertRejects(() => session.restore(place as string), InvalidArgument);
    }
    const left = [...Deno.readDirSync(folder)].map(({ name }) => name);
    assertEquals(left, ["session"], "no half-written file stays");
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("an exact model refuses a cache that fast arithmetic made, and a fast one takes an exact one's", async () => {
  const path = await Deno.makeTempFile();
  try {
    await using fast = await load("tiny", { ...EXACT, precision: "fast" });
    await using exact = await load("tiny", EXACT);
    using quick = fast.session();
    using careful = exact.session();
    await quick.append(idsOf(60));
    await quick.save(path);
    const error = await assertRejects(() => careful.restore(path), SessionError, 'precision: "fast"');
    assertEquals(error.code, "session_precision");
    await careful.append(idsOf(50));
    await careful.save(path);
    await quick.restore(path);
    assertEquals(quick.ids.length, 50);
  } finally {
    await Deno.remove(path);
  }
});

Deno.test("a session file whose checksum fits but whose conversation makes no sense is damaged", async () => {
  const path = await Deno.makeTempFile();
  try {
    await using model = await load("tiny", EXACT);
    using session = model.session();
    await session.append([{ role: "user", content: "Hi" }]);
    await session.save(path);
    const good = await Deno.readFile(path);
    const length = new DataView(good.buffer).getUint32(8, true);
    const header = JSON.parse(new TextDecoder().decode(good.subarray(12, 12 + length)));
    const { conversation } = header;
    const wrong = [
      "text",
      {},
      { ...conversation, base: -1 },
      { ...conversation, base: 1e9 },
      { ...conversation, replyStart: header.ids.length + 1 },
      { ...conversation, messages: null },
      { ...conversation, options: 5 },
      { ...conversation, media: 5 },
      { ...conversation, media: [{ kind: "image", spans: 1 }] },
      { ...conversation, media: [null] },
    ];
    for (const made of wrong) {
      const json = new TextEncoder().encode(JSON.stringify({ ...header, conversation: made }));
      const size = new Uint8Array(new Uint32Array([json.length]).buffer);
      const pages = good.subarray(12 + length, good.length - 32);
      const body = new Uint8Array([...good.subarray(0, 8), ...size, ...json, ...pages]);
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
      await Deno.writeFile(path, new Uint8Array([...body, ...digest]));
      const error = await assertRejects(() => session.restore(path), SessionError);
      assertEquals(error.code, "session_damaged", JSON.stringify(made));
    }
    await Deno.writeFile(path, good);
    await session.restore(path);
    await session.append([{ role: "user", content: "What is 2 + 2?" }]);
  } finally {
    await Deno.remove(path);
  }
});

Deno.test("a session that is disposed while it is saved is in the file; one that is restored meanwhile says that it is gone", async () => {
  await using model = await loadWith(fixtureModel("e2b")!, EXACT, { keptPrefixes: 0 });
  const path = await Deno.makeTempFile();
  const saved = model.session();
  await saved.append(idsOf(10));
  await Array.fromAsync(saved.generate({ ...GREEDY, maxTokens: 3 }));
  const saving = saved.save(path);
  saved[Symbol.dispose]();
  await saving;
  assertEquals(model.memory().kvUsed, 0);
  const gone = model.session();
  const restoring = gone.restore(path);
  gone[Symbol.dispose]();
  await assertRejects(() => restoring, Disposed, "session");
  assertEquals(model.memory().kvUsed, 0);
  using restored = model.session();
  await restored.restore(path);
  assertEquals(restored.ids, saved.ids);
  await Deno.remove(path);
});
