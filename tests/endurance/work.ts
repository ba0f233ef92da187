/** Long work on one model, by the amount: what the short tests run a little of and `deno task stress` runs for minutes. */
import { assert, assertEquals } from "@std/assert";
import { MarkbaseError, type Model } from "../../mod.ts";
import type { Random } from "../../src/conformance/random.ts";
import type { LoadedModel } from "../../src/engine/model.ts";

type Options = NonNullable<Parameters<Model["generate"]>[1]>;

/** A request and what a model that does nothing else answers. */
export interface Known {
  ids: number[];
  options: Options;
  expected: number[];
}

/** Generated ids; `limit` leaves the stream after so many. */
export async function generated(
  model: Model,
  ids: readonly number[],
  options: Options,
  limit = Infinity,
): Promise<number[]> {
  const all: number[] = [];
  for await (const id of model.generate(ids, options)) if (all.push(id) >= limit) break;
  return all;
}

/** Requests of mixed lengths over a few common beginnings, answered one after another. */
export async function knownRequests(model: Model, count: number, random: Random): Promise<Known[]> {
  const common = Array.from({ length: 4 }, () => Array.from({ length: 200 }, () => 3 + random.integer(1000)));
  const known: Known[] = [];
  for (let i = 0; i < count; i++) {
    const ids = [
      ...common[random.integer(4)].slice(0, random.integer(200)),
      ...Array.from({ length: 1 + random.integer(i % 5 === 0 ? 300 : 40) }, () => 3 + random.integer(1000)),
    ];
    const options: Options = {
      maxTokens: 1 + random.integer(30),
      temperature: i % 2 === 0 ? 0 : 1.1,
      seed: i,
      ignoreEos: true,
      ...(i % 7 === 0 ? { repetitionPenalty: 1.2 } : {}),
    };
    const expected = await generated(model, ids, { ...options, speculative: false });
    if (i % 3 === 0) options.speculative = 1 + random.integer(8); // whether it pays or not
    known.push({ ids, options, expected });
  }
  return known;
}

/** Clients that ask, abort and leave at random; whatever they get is what the request alone gives. Returns replies in full. */
export async function concurrent(
  model: Model,
  known: readonly Known[],
  requests: number,
  clients: number,
  random: Random,
): Promise<number> {
  let asked = 0, whole = 0;
  const client = async () => {
    while (asked++ < requests) {
      const { ids, options, expected } = known[random.integer(known.length)];
      const way = random.integer(10);
      if (way === 0) {
        const some = 1 + random.integer(expected.length);
        assertEquals(await generated(model, ids, options, some), expected.slice(0, some));
      } else if (way === 1) {
        const controller = new AbortController();
        const reason = new Error("left");
        setTimeout(() => controller.abort(reason), random.integer(20));
        const found = await generated(model, ids, { ...options, signal: controller.signal }).catch((error) =>
          error
        );
        assert(found === reason || JSON.stringify(found) === JSON.stringify(expected), `${found}`);
      } else {
        assertEquals(await generated(model, ids, options), expected);
        whole++;
      }
    }
  };
  await Promise.all(Array.from({ length: clients }, client));
  return whole;
}

/** Sessions until the cache refuses, each freed in turn; afterwards as much fits as before. Returns how many were refused. */
export async function fillAndFree(model: LoadedModel, rounds: number, random: Random): Promise<number> {
  let refused = 0;
  const { peak } = model.memory();
  for (let round = 0; round < rounds; round++) {
    using held = new DisposableStack();
    for (;;) {
      const session = held.use(model.session());
      await session.append(Array.from({ length: 100 + random.integer(300) }, () => 3 + random.integer(1000)));
      try {
        for await (const _ of session.generate({ maxTokens: 4, ignoreEos: true }));
      } catch (error) {
        assert(error instanceof MarkbaseError && error.code === "memory_limit", `${error}`);
        refused++;
        break;
      }
    }
  }
  model.engine.forward.prefixes.clear();
  assertEquals(model.memory().kvUsed, 0);
  assertEquals(model.memory().peak, peak, "the device holds no more than after the load");
  return refused;
}

/** One timeline from its first token to the end of the context, far past the window; returns its length. */
export async function toTheEnd(model: LoadedModel, random: Random): Promise<number> {
  using session = model.session();
  await session.append([3 + random.integer(1000)]);
  for await (
    const id of session.generate({ temperature: 1.2, seed: random.integer(1000), ignoreEos: true })
  ) {
    assert(id >= 0 && id < model.config.vocabularySize);
  }
  const { length } = session.ids;
  const full = await session.append([5]).catch((error) => error);
  assert(full instanceof MarkbaseError && full.code === "context_full", `${full}`);
  const again = await session.generate({}).next().catch((error) => error);
  assert(again instanceof MarkbaseError && again.code === "context_full", `${again}`);
  return length;
}

/** Bytes that the process holds: its resident ones, but of the JavaScript heap only what is in use. */
export async function heldBytes(): Promise<number> {
  const { gc } = globalThis as { gc?: () => void };
  gc?.();
  await new Promise((resolve) => setTimeout(resolve, 20)); // finalizers
  gc?.();
  const { rss, heapTotal, heapUsed } = Deno.memoryUsage();
  return rss - heapTotal + heapUsed;
}
