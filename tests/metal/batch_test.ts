/** Several sequences at once on software Metal: mixed forwards, drafts and prefixes give what each request alone gives. */
import { assertEquals } from "@std/assert";
import { generated } from "../support/calls.ts";
import { fixtureModel } from "../support/models.ts";
import { EXACT, loadMetal } from "./load.ts";

const TARGET = fixtureModel("e2b"), DRAFTER = fixtureModel("assistant-e2b");
const ignore = Deno.build.os !== "linux" || TARGET === null || DRAFTER === null;

Deno.test("e2b on software Metal answers requests at once, with and without drafts, as each alone", {
  ignore,
}, async () => {
  const prompts = [40, 7, 90].map((length, i) =>
    Array.from({ length }, (_, j) => 3 + (j * 29 + i * 7) % 230)
  );
  const options = { temperature: 0, maxTokens: 5, ignoreEos: true } as const;
  await using model = await loadMetal(TARGET!, { ...EXACT, drafter: DRAFTER! });
  const plain = { ...options, speculative: false };
  const expected: number[][] = [];
  for (const ids of prompts) expected.push(await generated(model, ids, plain));
  assertEquals(await Promise.all(prompts.map((ids) => generated(model, ids, plain))), expected);
  const drafted = { ...options, speculative: 3 };
  assertEquals(await Promise.all(prompts.map((ids) => generated(model, ids, drafted))), expected);
});
