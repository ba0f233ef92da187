/**
 * What a streamed token costs beside the network: time from step to step, split into the native forward and the parts of
 * everything else, in microseconds.
 *
 *     deno run -A bench/overhead.ts [MODEL] [--sequences 8] [--tokens 64] [--repetitions 10] [--device cpu] [--threads 1] [--awake]
 *         [--wait]
 *
 * A step is one forward with a row of each sequence. "native" is the library's own clock around a run, "device" the device's;
 * "in its call" is what `Forward.run` takes beside the native run: encoding the input, and the crossing to another
 * thread and back; less than nothing where the run began ahead, as "% ahead" of them did. The single parts are timed alone, on inputs of the same size. What these leave over is the scheduler
 * with its promises, draws, and generators. On the CPU device `--threads 1 --awake` leaves a core to the caller while a forward
 * runs, and lets it look for the end, as on a GPU.
 */
import { Device, type DeviceKind } from "../ffi/device.ts";
import { Pass, type RunStatistics } from "../ffi/pass.ts";
import { parseFlags } from "../src/cli/args.ts";
import type { LoadedModel } from "../src/engine/model.ts";
import type { GenerateOptions } from "../src/engine/api.ts";
import { encodeInput } from "../src/engine/input.ts";
import { load } from "../src/engine/load.ts";
import { chatReader } from "../src/engine/reply.ts";
import { sampleCandidates } from "../src/sample/sampler.ts";
import { WAIT, waitForLine } from "./peers/peers.ts";
import { median } from "./statistics.ts";

const { values, words } = parseFlags(Deno.args, {
  tokens: { type: "number", help: "of a reply" },
  sequences: { type: "number", help: "streams at once" },
  repetitions: { type: "number", help: "replies" },
  device: { type: "string", choices: ["cpu", "metal", "cuda"], help: "where it runs" },
  "matrix-units": { type: "boolean", help: "decode rows go through matrix units" },
  threads: { type: "number", help: "of the CPU device" },
  awake: { type: "boolean", help: "CPU device: runs are waited for as those of a GPU" },
  wait: WAIT,
});
const { tokens = 64, sequences = 1, repetitions = 10, threads } = values;
const device = (values.device ?? "cpu") as DeviceKind;
const source = words[0] ?? "tiny";
if (threads !== undefined) {
  const open = Device.open.bind(Device);
  Device.open = (kind, options) => open(kind, { ...options, threads });
}
await using model = await load(source, {
  device,
  contextLength: 2048,
  matrixUnits: values["matrix-units"],
}) as LoadedModel;
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

/** Microseconds since it was last cleared. */
const clock = { forward: 0, native: 0, device: 0, forwards: 0, ahead: 0 };
function note(statistics: RunStatistics): RunStatistics {
  clock.native += statistics.wallNs / 1e3;
  clock.device += statistics.deviceNs / 1e3;
  if (statistics.ahead) clock.ahead++;
  return statistics;
}
const { run: runPass, runSync: runPassSync } = Pass.prototype;
Pass.prototype.run = async function (input, output, options) {
  const foreseen = values.awake && output !== undefined ? "look" : options?.foreseen;
  return note(await runPass.call(this, input, output, { ...options, foreseen }));
};
Pass.prototype.runSync = function (...args) {
  return note(runPassSync.apply(this, args));
};
const run = forward.run.bind(forward);
forward.run = async (...args) => {
  const start = performance.now();
  const result = await run(...args);
  clock.forward += (performance.now() - start) * 1e3;
  clock.forwards++;
  return result;
};

type Step = Record<"whole" | "forward" | "native" | "device" | "ahead", number>;

/** Medians over replies of microseconds a step after the first. */
async function streamed(options: GenerateOptions, repetitions: number): Promise<Step> {
  const each: Step[] = [];
  for (let i = 0; i < repetitions; i++) {
    const streams = Array.from({ length: sequences }, (_, n) => {
      const ids = [2, 10 + (i + 7 * n) % 100, 20, 30];
      return model.generate(ids, { ...options, seed: i * sequences + n, maxTokens: tokens, ignoreEos: true });
    });
    await Promise.all(streams.map((stream) => stream.next()));
    Object.assign(clock, { forward: 0, native: 0, device: 0, forwards: 0, ahead: 0 });
    const start = performance.now();
    await Promise.all(streams.map(async (stream) => {
      const reader = chatReader(model.tokenizer, []);
      for await (const id of stream) reader.push(id);
    }));
    const whole = (performance.now() - start) * 1e3;
    const { forwards, forward, native, device, ahead } = clock;
    if (forwards > tokens) console.error(`${forwards} forwards for ${tokens - 1} steps: streams fell apart`);
    each.push({
      whole: whole / forwards,
      forward: forward / forwards,
      native: native / forwards,
      device: device / forwards,
      ahead: 100 * ahead / forwards,
    });
  }
  const of = (key: keyof Step) => median(each.map((one) => one[key]));
  return {
    whole: of("whole"),
    forward: of("forward"),
    native: of("native"),
    device: of("device"),
    ahead: of("ahead"),
  };
}

const CASES: [string, GenerateOptions][] = [
  ["greedy", { temperature: 0 }],
  ["temperature 1", { temperature: 1 }],
  ["temperature 1, top-k 64, top-p 0.95, min-p 0.02", { temperature: 1, topK: 64, topP: 0.95, minP: 0.02 }],
  ["the same, penalties", { temperature: 1, topK: 64, topP: 0.95, minP: 0.02, repetitionPenalty: 1.1 }],
];
for (const [, options] of CASES) await streamed(options, 1);
if (values.wait) await waitForLine();
console.log(`${source}, ${V} tokens in the vocabulary, ${sequences} at once; microseconds a step`);
console.log(
  ["whole", "device", "native", "other", "in its call", "% ahead"].map((word) => word.padStart(11)).join(
    " ",
  ),
);
for (const [name, options] of CASES) {
  const { whole, forward, native, device, ahead } = await streamed(options, repetitions);
  const figures = [whole, device, native, whole - native, forward - native, ahead].map((value) =>
    value.toFixed(0).padStart(11)
  );
  console.log(`${figures.join(" ")}  ${name}`);
}

const page = (count: number) => ({ first: 0, pages: Array.from({ length: count }, (_, i) => i) });
const each = Array.from({ length: sequences }, (_, i) => i);
const input = {
  rows: each.map((sequence) => ({ token: 5, position: 100, sequence, rowClass: "decode" as const })),
  outputs: each.map((row) => ({ row, temperature: 1 })),
  sequences: each.map(() => forward.groups.map(() => page(4))),
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
const reader = chatReader(model.tokenizer, []);
const time = alone(() => ids.forEach((id) => reader.push(id)), 20) / ids.length;
console.log(`${time.toFixed(1).padStart(9)}  text of a token, and the parts of a reply`);
