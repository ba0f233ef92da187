/** R68: a run that the device fails: the calls that are part of it say so, and everything after it is as ever. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { DeviceError, type GenerateOptions, load } from "../../mod.ts";
import { Pass, type RunStatistics } from "../../ffi/pass.ts";
import { loadWith } from "../../src/engine/load.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import { EXACT, generated, user } from "../support/calls.ts";
import { maxDifference, TINY, TINY_DRAFTER } from "../support/models.ts";

/** A GPU that was reset. */
const LOST = new DeviceError("device_lost", "The GPU did not complete the run.");
const GREEDY = { temperature: 0, ignoreEos: true, maxTokens: 24 } as const;

/** Where a run fails: before anything is computed, or after all of it is in the cache's pages. */
type When = "before" | "after";

/** Makes the `nth` run from now fail, of any pass and on any thread; `failed()` tells whether it has. */
function failing(nth: number, when: When): Disposable & { failed(): boolean } {
  const { run, runSync } = Pass.prototype;
  let runs = 0;
  Pass.prototype.run = async function (...args): Promise<RunStatistics> {
    const fails = ++runs === nth;
    if (fails && when === "before") throw LOST;
    const statistics = await run.apply(this, args);
    if (fails) throw LOST;
    return statistics;
  };
  Pass.prototype.runSync = function (...args): RunStatistics {
    const fails = ++runs === nth;
    if (fails && when === "before") throw LOST;
    const statistics = runSync.apply(this, args);
    if (fails) throw LOST;
    return statistics;
  };
  return {
    failed: () => runs >= nth,
    [Symbol.dispose]: () => void Object.assign(Pass.prototype, { run, runSync }),
  };
}

const PROMPTS = [30, 100, 7, 65].map((
  length,
  i,
) => [2, ...Array.from({ length }, (_, j) => 300 + (i * 131 + j * j * 7) % 1100)]);

/** Loads with forwards on threads of the library, which may begin ahead, or on the caller's. */
async function loaded(shortSeconds: number, drafter?: string): Promise<LoadedModel> {
  return await loadWith(TINY, { ...EXACT, drafter, contextLength: 1024 }, { shortSeconds });
}

for (
  const [where, shortSeconds, drafter] of [
    ["on a thread of the library", 0],
    ["on the caller's thread", Infinity],
    ["with a drafter", 0, TINY_DRAFTER],
  ] as const
) {
  Deno.test(`R68: streams whose forward fails ${where} reject, and what follows is as ever`, async () => {
    await using fresh = await load(TINY, EXACT);
    const expected: number[][] = [];
    for (const ids of PROMPTS) expected.push(await generated(fresh, ids, GREEDY));
    await using model = await loaded(shortSeconds, drafter);
    const options: GenerateOptions = drafter === undefined ? GREEDY : { ...GREEDY, speculative: 4 };
    let rejected = 0;
    for (const when of ["before", "after"] as const) {
      for (const nth of [1, 2, 3, 5, 9, 14]) {
        const settled = await (async () => {
          using fault = failing(nth, when);
          const all = await Promise.allSettled(PROMPTS.map((ids) => generated(model, ids, options)));
          assert(fault.failed(), `run ${nth}`);
          return all;
        })();
        settled.forEach((result, i) => {
          if (result.status === "fulfilled") return assertEquals(result.value, expected[i], `${when} ${nth}`);
          assertEquals(result.reason, LOST);
          rejected++;
        });
        // At once, and then alone: from pages that the prefix cache may have kept.
        const again = await Promise.all(PROMPTS.map((ids) => generated(model, ids, options)));
        assertEquals(again, expected, `at once, after a failure ${when} run ${nth}`);
        for (const [i, ids] of PROMPTS.entries()) {
          assertEquals(
            await generated(model, ids, options),
            expected[i],
            `alone, after a failure ${when} run ${nth}`,
          );
        }
      }
    }
    assert(rejected >= 12, `${rejected} calls were part of a run that failed`);
  });
}

Deno.test("R68: a prompt whose chunk fails, and a session whose token fails, go on as if they had not been asked for", async () => {
  await using fresh = await load(TINY, EXACT);
  await using model = await loaded(0);
  const ids = PROMPTS.flat().slice(0, 200);
  const right = await fresh.logits(ids);
  const rest = await generated(fresh, PROMPTS[1], GREEDY);
  for (const when of ["before", "after"] as const) {
    {
      using _ = failing(1, when);
      assertEquals(await assertRejects(() => model.logits(ids), DeviceError), LOST);
    }
    assertEquals(maxDifference(await model.logits(ids), right), 0);
    for (const nth of [1, 2, 6]) {
      using session = model.session();
      await session.append(PROMPTS[1]);
      const found: number[] = [];
      {
        using _ = failing(nth, when);
        const reading = async () => {
          for await (const id of session.generate(GREEDY)) found.push(id);
        };
        assertEquals(await assertRejects(reading, DeviceError), LOST);
      }
      assertEquals(session.ids, [...PROMPTS[1], ...found]);
      assert(found.length < 24);
      for await (const id of session.generate({ ...GREEDY, maxTokens: 24 - found.length })) found.push(id);
      assertEquals(found, rest, `${when} run ${nth}`);
    }
  }
});

Deno.test("R68: a tower that fails ends its call alone, and the picture is seen the next time", async () => {
  await using model = await loaded(0);
  const image = new URL("../fixtures/tiny/scene.png", import.meta.url);
  const messages = [{
    role: "user" as const,
    content: [{ type: "image" as const, image }, { type: "text" as const, text: "Describe the image." }],
  }];
  for (const when of ["before", "after"] as const) {
    for (const nth of [1, 2, 4, 7]) {
      {
        using _ = failing(nth, when);
        const error = await assertRejects(() => model.chat(messages, { temperature: 0 }), DeviceError);
        assertEquals(error, LOST, `${when} run ${nth}`);
      }
      const sum = await model.chat(user("What is 27 + 45?"), { temperature: 0 });
      assertEquals(sum.text, "72");
    }
  }
  const { text } = await model.chat(messages, { temperature: 0 });
  assertEquals(text, "A red circle above two blue squares.");
});
