/** Run by following_test.ts in Workers: streams whose forwards begin ahead, each two at the same time. */
import type { GenerateOptions } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import { EXACT, generated } from "../support/calls.ts";
import { TINY } from "../support/models.ts";

const scope = self as unknown as Worker;
await using model = await loadWith(TINY, EXACT, { keptPrefixes: 0, shortSeconds: 0 });
const told = Promise.withResolvers<MessageEvent<{ prompt: number[]; requests: GenerateOptions[] }>>();
scope.onmessage = told.resolve;
scope.postMessage("loaded");
const { prompt, requests } = (await told.promise).data;
const [odd, even] = [1, 0].map(async (rest) => {
  const found = new Map<number, number[]>();
  for (const [i, options] of requests.entries()) {
    if (i % 2 === rest) found.set(i, await generated(model, prompt, options));
  }
  return found;
});
const found = new Map([...await odd, ...await even]);
const { ahead, instead } = model.engine.forward.counts;
scope.postMessage({ found: requests.map((_, i) => found.get(i)), ahead, instead });
