/** Endurance in short: the same work as `deno task stress`, a little of it. */
import { assert, assertEquals } from "@std/assert";
import { Random } from "../../src/conformance/random.ts";
import { loadWith } from "../../src/engine/load.ts";
import { TINY, TINY_DRAFTER } from "../support/models.ts";
import { nativeBytes } from "../support/process.ts";
import { concurrent, fillAndFree, generated, knownRequests, toTheEnd } from "./work.ts";

const EXACT = { device: "cpu", precision: "exact", kvCache: "f32", contextLength: 640 } as const;

for (const drafter of [undefined, TINY_DRAFTER]) {
  const with_ = drafter ? "with a drafter" : "without a drafter";
  Deno.test(`clients that ask, abort and leave at random get what each request alone gives, and no NaN: ${with_}`, async () => {
    const random = new Random(1);
    await using alone = await loadWith(TINY, EXACT, { keptPrefixes: 0 });
    const known = await knownRequests(alone, 24, random);
    await using model = await loadWith(TINY, { ...EXACT, drafter }, { checkFinite: true, chunkRows: 128 });
    const whole = await concurrent(model, known, 120, 10, random);
    assert(whole > 60, `${whole}`);
    model.engine.forward.prefixes.clear();
    assertEquals(model.memory().kvUsed, 0, "nothing is left in the cache");
  });
}

Deno.test("sessions that fill the cache are refused, freed, and fit again, time after time", async () => {
  await using model = await loadWith(TINY, { ...EXACT, kvCache: "f16" }, { kvPages: 60 });
  assertEquals(await fillAndFree(model, 6, new Random(2)), 6);
});

Deno.test("a timeline generates past its window to the end of the context, and says then that it is full", async () => {
  await using model = await loadWith(TINY, EXACT, { checkFinite: true });
  assertEquals(await toTheEnd(model, new Random(3)), 640);
});

Deno.test("a thousand requests leave no more behind than the thousand before them", async () => {
  await using model = await loadWith(TINY, { ...EXACT, precision: "fast" }, {});
  const random = new Random(4);
  const ask = async (count: number) => {
    const one = async () => {
      const ids = Array.from({ length: 1 + random.integer(60) }, () => 3 + random.integer(1000));
      await generated(model, ids, { maxTokens: 3, temperature: 1, ignoreEos: true });
    };
    for (let i = 0; i < count; i += 10) await Promise.all(Array.from({ length: 10 }, one));
  };
  await ask(1000); // touches every page of the cache
  const { peak, kv, activations } = model.memory();
  // What requests leave behind adds up in every thousand of them; what the collector of this process's garbage takes and gives back
  // does not.
  const growths: number[] = [];
  while (growths.length < 4 && Math.min(1, ...growths) >= 0.01) {
    const before = nativeBytes();
    await ask(1000);
    growths.push(nativeBytes() / before - 1);
  }
  assert(Math.min(...growths) < 0.01, growths.map((growth) => `${(100 * growth).toFixed(2)} %`).join(", "));
  const after = model.memory();
  assertEquals([after.peak, after.kv, after.activations], [peak, kv, activations]);
  const { forward } = model.engine;
  const kept = forward.prefixes.pages;
  assert(forward.prefixes.blocks <= kept.reduce((sum, pages) => sum + pages, 0));
});
