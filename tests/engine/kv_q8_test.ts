/** Keys and values as 8-bit codes: what is stored, how far it is from numbers, and that all else holds as with them. */
import { assert, assertEquals } from "@std/assert";
import { load } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import { pageBytes } from "../../src/schedule/groups.ts";
import { generated } from "../support/calls.ts";
import { divergence, fixtureModel, TINY, TINY_DRAFTER } from "../support/models.ts";

const F32 = { device: "cpu", precision: "exact", kvCache: "f32" } as const;
const Q8 = { ...F32, kvCache: "q8" } as const;

for (const name of ["e2b", "31b"]) {
  const folder = fixtureModel(name);
  Deno.test(`codes and scales of ${name} stand for the numbers of its first layer, in both kinds of page`, {
    ignore: folder === null,
  }, async () => {
    await using exact = await loadWith(folder!, F32, { keptPrefixes: 0 });
    await using coded = await loadWith(folder!, Q8, { keptPrefixes: 0 });
    const ids = Array.from({ length: 41 }, (_, i) => 3 + (i * 29) % 230);
    const pagesOf = async (model: typeof exact, format: "f32" | "q8") => {
      const { forward } = model.engine;
      const sequence = forward.sequence();
      await forward.prefill(sequence, ids, { outputs: 0, mask: 0 }, () => {});
      const bytes = new Uint8Array(pageBytes(forward.groups[0], format));
      await forward.readPage(0, sequence.tables[0].pages[1], bytes);
      sequence.dispose();
      return bytes;
    };
    const { kvHeads, headDim: d, layers } = exact.engine.forward.groups[0];
    assertEquals(layers[0], 0);
    const numbers = new Float32Array((await pagesOf(exact, "f32")).buffer);
    const codes = await pagesOf(coded, "q8");
    const view = new DataView(codes.buffer);
    let compared = 0;
    for (let block = 0; block < 2 * kvHeads; block++) { // keys and values of layer 0
      for (let token = 0; token < ids.length - 32; token++) {
        const head = numbers.subarray((block * 32 + token) * d, (block * 32 + token + 1) * d);
        const largest = head.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
        const start = block * 32 * (d + 4);
        const scale = view.getFloat32(start + 32 * d + 4 * token, true);
        assert(Math.abs(scale - largest / 127) <= 1e-6 * largest, `scale ${scale} of ${largest}`);
        for (let i = 0; i < d; i++) {
          const code = view.getInt8(start + token * d + i);
          assert(Math.abs(code * scale - head[i]) <= 0.501 * scale, `${code} · ${scale} for ${head[i]}`);
          compared++;
        }
      }
    }
    assert(compared > 100);
  });

  Deno.test(`R47: ${name} with a cache of codes diverges from the one with numbers by less than 0.01 nats`, {
    ignore: folder === null,
  }, async () => {
    await using exact = await load(folder!, F32);
    await using coded = await load(folder!, Q8);
    const ids = Array.from({ length: 600 }, (_, i) => 3 + (i * i * 31 + i * 7) % 230);
    const V = exact.config.vocabularySize;
    const found = divergence(
      await exact.logits(ids, { last: ids.length }),
      await coded.logits(ids, { last: ids.length }),
      V,
    );
    assert(found > 0 && found < 0.01, `${found}`);
  });
}

Deno.test("tiny with a cache of codes diverges by less than 0.01 nats from f16 over a text, and answers alike", async () => {
  await using half = await load(TINY, { ...F32, kvCache: "f16" });
  await using coded = await load(TINY, Q8);
  const prompt = half.tokenizer.encode(half.renderChat([{ role: "user", content: "Tell me a story." }]), {
    special: true,
  });
  const ids = [...prompt];
  while (ids.length < 500) { // stories one after another
    ids.push(...await generated(half, prompt, { temperature: 1, seed: ids.length, maxTokens: 200 }));
    ids.push(...prompt.slice(1));
  }
  const V = half.config.vocabularySize;
  const last = ids.length;
  const found = divergence(await half.logits(ids, { last }), await coded.logits(ids, { last }), V);
  assert(found > 0 && found < 0.01, `${found}`);
  for (
    const [question, answer] of [["What is 27 + 45?", "72"], [
      "What is the capital of Japan?",
      "The capital of Japan is Tokyo.",
    ]]
  ) {
    const reply = await coded.chat([{ role: "user", content: question }], { temperature: 0 });
    assertEquals([reply.text, reply.receipt.kvCache], [answer, "q8"]);
  }
});

Deno.test("with a cache of codes too, mates, chunks, prefixes, forks, files and drafts change no token", async () => {
  const options = { temperature: 0.8, seed: 4, maxTokens: 20, ignoreEos: true };
  const prompts = [90, 300, 12, 150].map((length, i) =>
    Array.from({ length }, (_, j) => 3 + (j * 31 + (j > 70 ? i : 0)) % 900)
  );
  const expected: number[][] = [];
  {
    await using alone = await loadWith(TINY, Q8, { keptPrefixes: 0 });
    for (const ids of prompts) expected.push(await generated(alone, ids, options));
  }
  const path = await Deno.makeTempFile();
  try {
    for (const chunkRows of [512, 37]) {
      await using model = await loadWith(TINY, { ...Q8, drafter: TINY_DRAFTER }, { chunkRows });
      for (let round = 0; round < 2; round++) { // the second finds prefixes
        const drafted = { ...options, speculative: 4 };
        assertEquals(await Promise.all(prompts.map((ids) => generated(model, ids, drafted))), expected);
      }
      using session = model.session();
      await session.append(prompts[1].slice(0, 250));
      for await (const _ of session.generate({ maxTokens: 1, temperature: 0 }));
      await session.append(prompts[1].slice(250, 251));
      await session.save(path);
      using restored = model.session();
      await restored.restore(path);
      using fork = restored.fork();
      const next = async (one: typeof session) => {
        const all: number[] = [];
        for await (const id of one.generate(options)) all.push(id);
        return all;
      };
      const [a, b, c] = [await next(session), await next(restored), await next(fork)];
      assertEquals([b, c], [a, a]);
    }
  } finally {
    await Deno.remove(path);
  }
});

Deno.test("a cache of codes takes about half of one in f16", async () => {
  await using half = await loadWith(fixtureModel("e2b")!, { ...F32, kvCache: "f16" }, { kvPages: 40 });
  await using coded = await loadWith(fixtureModel("e2b")!, Q8, { kvPages: 40 });
  const { headDim: d } = half.engine.forward.groups[0];
  const share = coded.memory().kv / half.memory().kv;
  assert(share < (d + 4) / (2 * d) + 0.01, `${share}`);
});
