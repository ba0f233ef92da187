/**
 * What a streamed token costs beside the network: time from token to token, split into the native forward and the parts of
 * everything else, in microseconds.
 *
 *     deno run -A bench/overhead.ts [MODEL] [--tokens 64] [--repetitions 10] [--wait]
 *
 * "whole", "forward" and "native" are clocked where they happen; the single parts are timed alone, on inputs of the same size. What
 * these leave over is the scheduler with its promises, the crossing to the library's thread and back, and generators.
 */
import { load } from "../mod.ts";
import { parseFlags } from "../src/cli/args.ts";
import type { LoadedModel } from "../src/engine/model.ts";
import type { GenerateOptions } from "../src/engine/api.ts";
import { encodeInput } from "../src/engine/input.ts";
import { chatReader } from "../src/engine/reply.ts";
import { sampleCandidates } from "../src/sample/sampler.ts";
import { WAIT, waitForLine } from "./peers/peers.ts";
import { median } from "./statistics.ts";

const { values, words } = parseFlags(Deno.args, {
  tokens: { type: "number", help: "of a reply" },
  repetitions: { type: "number", help: "replies" },
  wait: WAIT,
});
const { tokens = 64, repetitions = 10 } = values;
const source = words[0] ?? "tiny";
await using model = await load(source, { device: "cpu", contextLength: 2048 }) as LoadedModel;
const { forward } = model.engine;
const V = model.config.vocabularySize;

/** Microseconds of one call, the median of 21 runs of many. */
function alone(work: () => unknown, calls = 200): number {
  const times: number[] = [];
  for (let run = 0; run < 21; run++) {
    const start = performance.now();
    for (let i = 0; i < calls; i++) work();
    times.push((performance.now() - start) * 1e3 / calls);
  }
  return median(times);
}

let inForward = 0, native = 0, forwards = 0;
const run = forward.run.bind(forward);
forward.run = async (...args) => {
  const start = performance.now();
  const result = await run(...args);
  inForward += performance.now() - start;
  native += result.seconds * 1e3;
  forwards++;
  return result;
};

/** Medians over replies of microseconds a token after the first. */
async function streamed(options: GenerateOptions, repetitions: number) {
  const each: { whole: number; forward: number; native: number }[] = [];
  for (let i = 0; i < repetitions; i++) {
    const ids = [2, 10 + i % 100, 20, 30];
    let start = 0, count = 0;
    const reader = chatReader(model.tokenizer);
    for await (
      const id of model.generate(ids, { ...options, seed: i, maxTokens: tokens, ignoreEos: true })
    ) {
      reader.push(id);
      if (count++ > 0) continue;
      start = performance.now();
      inForward = native = forwards = 0;
    }
    const whole = performance.now() - start;
    each.push({
      whole: whole / (count - 1) * 1e3,
      forward: inForward / forwards * 1e3,
      native: native / forwards * 1e3,
    });
  }
  const of = (key: "whole" | "forward" | "native") => median(each.map((one) => one[key]));
  return { whole: of("whole"), forward: of("forward"), native: of("native") };
}

const CASES: [string, GenerateOptions][] = [
  ["greedy", { temperature: 0 }],
  ["temperature 1", { temperature: 1 }],
  ["temperature 1, top-k 64, top-p 0.95, min-p 0.02", { temperature: 1, topK: 64, topP: 0.95, minP: 0.02 }],
  ["the same, penalties", { temperature: 1, topK: 64, topP: 0.95, minP: 0.02, repetitionPenalty: 1.1 }],
];
for (const [, options] of CASES) await streamed(options, 1);
if (values.wait) await waitForLine();
console.log(`${source}, ${V} tokens in the vocabulary; microseconds a token`);
console.log(
  ["whole", "native", "other", "of it in the forward's call"].map((word) => word.padStart(9)).join(" "),
);
for (const [name, options] of CASES) {
  const { whole, forward, native } = await streamed(options, repetitions);
  const figures = [whole, native, whole - native, forward - native].map((value) =>
    value.toFixed(0).padStart(9)
  );
  console.log(`${figures.join(" ")}  ${name}`);
}

const page = (count: number) => ({ first: 0, pages: Array.from({ length: count }, (_, i) => i) });
const input = {
  rows: [{ token: 5, position: 100, sequence: 0, rowClass: "decode" as const }],
  outputs: [{ row: 0, temperature: 1 }],
  sequences: [forward.groups.map(() => page(4))],
  groups: forward.groups.length,
  vocabularySize: V,
  outputMask: 7,
};
console.log(`${alone(() => encodeInput(input)).toFixed(1).padStart(9)}  input block`);
const best = Float32Array.from({ length: 256 }, (_, i) => 20 - 0.05 * i);
const candidates = {
  ids: Uint32Array.from(best, (_, i) => i),
  values: best,
  count: 256,
  more: true,
  vocabularySize: V,
  logSumExp: 22,
};
for (const [name, options] of CASES.slice(0, 3)) {
  const settings = { temperature: 1, topK: 0, topP: 1, minP: 0, seed: 1, ...options } as const;
  let position = 0;
  const time = alone(() => sampleCandidates(candidates, settings, position++), 20);
  console.log(`${time.toFixed(1).padStart(9)}  draw from 256 candidates, ${name}`);
}
const ids = model.tokenizer.encode("Once upon a time, in a small village by the sea, there lived a fox.");
const reader = chatReader(model.tokenizer);
const time = alone(() => ids.forEach((id) => reader.push(id)), 20) / ids.length;
console.log(`${time.toFixed(1).padStart(9)}  text of a token, and the parts of a reply`);
