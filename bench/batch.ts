/**
 * Decoding with several sequences at once: aggregate tokens/s and milliseconds per token and row.
 *
 *     deno run -A bench/batch.ts FOLDER [--device cpu] [--batch 1,2,4,8,16] [--tokens 24] [--repetitions 2] [--precision fast]
 *
 * Prompts are random token ids of 16 tokens. Time counts from when every sequence has its first token. The cores' own time tells
 * more than the wall's where other work runs beside it.
 */
import process from "node:process";
import { load } from "../mod.ts";
import { parseFlags } from "../src/cli/args.ts";
import { loadFlags, loadOptions } from "../src/cli/options.ts";
import { median } from "./statistics.ts";

const { values, words } = parseFlags(Deno.args, {
  ...loadFlags,
  batch: { type: "string", help: "numbers of sequences, separated by commas" },
  tokens: { type: "number", help: "tokens of each sequence" },
  repetitions: { type: "number", help: "how often" },
});
const sizes = (values.batch ?? "1,2,4,8,16").split(",").map(Number);
const tokens = values.tokens ?? 24;
const repetitions = values.repetitions ?? 2;

await using model = await load(words[0] ?? "tiny", { contextLength: 1024, ...loadOptions(values) });
let seed = 1;
const randomId = () => 3 + ((seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) >>> 8) % 1000;

/** Seconds in which `count` sequences draw `tokens` tokens each, and seconds of all cores together. */
async function time(count: number): Promise<{ wall: number; cores: number }> {
  const options = { maxTokens: tokens + 1, temperature: 0, ignoreEos: true };
  const streams = Array.from(
    { length: count },
    () => model.generate(Array.from({ length: 16 }, randomId), options),
  );
  await Promise.all(streams.map((stream) => stream.next()));
  const before = process.cpuUsage();
  const started = performance.now();
  await Promise.all(streams.map(async (stream) => {
    for await (const _ of stream);
  }));
  const { user, system } = process.cpuUsage(before);
  return { wall: (performance.now() - started) / 1e3, cores: (user + system) / 1e6 };
}

await time(1); // touches every page of the weights
console.log(`${words[0] ?? "tiny"}, ${navigator.hardwareConcurrency} cores, ${tokens} tokens a sequence`);
console.log("batch   tokens/s   ms/token   ms/token/row   against the first   core ms/token/row");
let first = 0;
for (const size of sizes) {
  const runs: { wall: number; cores: number }[] = [];
  for (let i = 0; i < repetitions; i++) runs.push(await time(size));
  const seconds = median(runs.map(({ wall }) => wall));
  const cores = median(runs.map(({ cores }) => cores));
  const rate = size * tokens / seconds;
  first ||= rate;
  const each = seconds / tokens * 1e3;
  console.log(
    [
      String(size).padStart(5),
      rate.toFixed(1).padStart(10),
      each.toFixed(1).padStart(10),
      (each / size).toFixed(1).padStart(14),
      `${(rate / first).toFixed(2)} x`.padStart(15),
      (cores / tokens / size * 1e3).toFixed(1).padStart(16),
    ].join(" "),
  );
}
