/**
 * Endurance: random concurrent work on one model for minutes. Every token is compared with that of the request alone; each op is
 * watched for NaN and Inf; memory is watched for growth.
 *
 *     deno task stress [--minutes 3] [--clients 12] [--seed 1] [--model FOLDER] [--drafter FOLDER] [--kv-cache f16]
 */
import { parseFlags } from "../src/cli/args.ts";
import { loadFlags, loadOptions } from "../src/cli/options.ts";
import { Random } from "../src/conformance/random.ts";
import { loadWith } from "../src/engine/load.ts";
import { concurrent, fillAndFree, generated, heldBytes, knownRequests, toTheEnd } from "./endurance/work.ts";
import { TINY, TINY_DRAFTER } from "./support/models.ts";

const { values } = parseFlags(Deno.args, {
  ...loadFlags,
  minutes: { type: "number", help: "how long" },
  clients: { type: "number", help: "that ask at the same time" },
  seed: { type: "number", help: "of all random choices" },
});
/** Rounds in which pages are touched and code is compiled for the first time. */
const SETTLING = 2;
const minutes = values.minutes ?? 3;
const seed = values.seed ?? 1;
const random = new Random(seed);
const folder = values.model ?? TINY;
const drafter = values.drafter ?? (values.model === undefined ? TINY_DRAFTER : undefined);
// In fast mode prefixes of decode rows round otherwise, so that only exact mode can be compared token by token.
const options = { device: "cpu", precision: "exact", contextLength: 1024, ...loadOptions(values) } as const;

await using alone = await loadWith(folder, { ...options, drafter: undefined }, { keptPrefixes: 0 });
const known = await knownRequests(alone, 60, random);
await using model = await loadWith(folder, { ...options, drafter }, { checkFinite: true });
const ends = performance.now() + minutes * 60e3;
const counts = { replies: 0, refused: 0, timelines: 0, requests: 0 };
let settled = 0, growth = 0;
for (let round = 0; performance.now() < ends; round++) {
  counts.replies += await concurrent(model, known, 200, values.clients ?? 12, random);
  counts.refused += await fillAndFree(model, 1, random);
  await toTheEnd(model, random);
  counts.timelines++;
  for (let i = 0; i < 1000 && performance.now() < ends; i++, counts.requests++) {
    await generated(model, [3 + random.integer(1000), 3 + random.integer(1000)], {
      maxTokens: 1,
      ignoreEos: true,
    });
  }
  const bytes = await heldBytes();
  if (round <= SETTLING) settled = bytes;
  else growth = bytes / settled - 1;
  const { kvUsed, peak } = model.memory();
  console.log(
    `round ${round}: ${JSON.stringify(counts)}, process ${(bytes / 1e6).toFixed(1)} MB, device peak ${
      (peak / 1e6).toFixed(1)
    } MB, cache ${(kvUsed / 1e6).toFixed(1)} MB`,
  );
}
console.log(
  `seed ${seed}: no token differed, nothing was NaN; the process grew by ${
    (100 * growth).toFixed(2)
  } % after round ${SETTLING}`,
);
