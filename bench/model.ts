/**
 * Whole-model speed: load time, prefill and decode tokens/s, bytes per token and their share of the memory bandwidth that is
 * measured in the same run, before and after.
 *
 *     deno run -A bench/model.ts FOLDER [--device cpu] [--prompt 512] [--tokens 32] [--repetitions 5] [--precision fast]
 *
 * Prompts are random token ids, different each time, so that no cache can help.
 */
import { load } from "../mod.ts";
import { parseFlags } from "../src/cli/args.ts";
import { loadFlags, loadOptions } from "../src/cli/options.ts";
import { readBandwidth } from "./bandwidth.ts";
import { median, spread } from "./statistics.ts";

const { values, words } = parseFlags(Deno.args, {
  ...loadFlags,
  prompt: { type: "number", help: "tokens of the prefill" },
  tokens: { type: "number", help: "tokens to decode" },
  repetitions: { type: "number", help: "how often" },
});
const folder = words[0] ?? "tiny";
const promptTokens = values.prompt ?? 512;
const tokens = values.tokens ?? 32;
const repetitions = values.repetitions ?? 5;
const cores = navigator.hardwareConcurrency;

const before = await readBandwidth(cores);
const loading = performance.now();
await using model = await load(folder, loadOptions(values));
const loaded = performance.now() - loading;

let seed = 1;
/** Random token ids that no earlier prompt began with. */
function randomIds(count: number): number[] {
  return Array.from({ length: count }, () => {
    seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
    return 3 + (seed >>> 8) % (model.config.vocabularySize - 3);
  });
}

await model.logits(randomIds(promptTokens)); // compiles passes, touches every page of the weights
const prefill: number[] = [];
const decode: number[] = [];
for (let i = 0; i < repetitions; i++) {
  const started = performance.now();
  await model.logits(randomIds(promptTokens));
  prefill.push(promptTokens / (performance.now() - started) * 1e3);

  let first = 0;
  let count = 0;
  for await (
    const _ of model.generate(randomIds(16), { maxTokens: tokens + 1, temperature: 0, ignoreEos: true })
  ) {
    if (count++ === 0) first = performance.now();
  }
  decode.push((count - 1) / (performance.now() - first) * 1e3);
}
const after = await readBandwidth(cores);

const bytes = model.explain({ rows: 1, context: 16 + (tokens >> 1) }).totals.bytes;
const bandwidth = (before + after) / 2;
const achieved = median(decode) * bytes;
const memory = model.memory();
console.log(`model             ${folder}, precision ${values.precision ?? "fast"}, ${cores} cores`);
console.log(`load              ${loaded.toFixed(0)} ms`);
console.log(`prefill(${promptTokens})      ${spread(prefill)} tokens/s`);
console.log(`decode            ${spread(decode)} tokens/s over ${tokens} tokens`);
console.log(`bytes a token     ${(bytes / 1e9).toFixed(3)} GB`);
console.log(`bandwidth         ${(before / 1e9).toFixed(1)} GB/s before, ${(after / 1e9).toFixed(1)} after`);
console.log(`share of it       ${(100 * achieved / bandwidth).toFixed(0)}%`);
console.log(
  `memory            mapped ${(memory.mapped / 1e9).toFixed(2)} GB, device peak ${
    (memory.peak / 1e9).toFixed(2)
  } GB`,
);
