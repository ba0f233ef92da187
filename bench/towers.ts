/**
 * Time and memory of a model's towers: one picture and one clip of sound, as `src/media` prepares them.
 *
 *     deno run -A bench/synthetic.ts e4b-towers FOLDER
 *     deno run -A bench/towers.ts FOLDER [--device cpu] [--precision fast] [--width 960] [--height 672] [--tokens 280]
 *         [--seconds 30] [--repetitions 3]
 *
 * Pixels and samples are noise; neither tower looks at what it sees.
 */
import { parseFlags } from "../src/cli/args.ts";
import { loadFlags, loadOptions } from "../src/cli/options.ts";
import { loadWith } from "../src/engine/load.ts";
import { logMel, SAMPLE_RATE } from "../src/media/mel.ts";
import { cutPatches } from "../src/media/patches.ts";
import { spread } from "./statistics.ts";

const { values, words } = parseFlags(Deno.args, {
  ...loadFlags,
  width: { type: "number", help: "of the picture in pixels" },
  height: { type: "number", help: "of the picture in pixels" },
  tokens: { type: "number", help: "soft tokens of the picture at most" },
  seconds: { type: "number", help: "length of the sound" },
  repetitions: { type: "number", help: "how often" },
});
const { width = 960, height = 672, tokens = 280, seconds = 30, repetitions = 3 } = values;

await using model = await loadWith(words[0] ?? "tiny", loadOptions(values), {});
const { towers } = model.engine;
const { vision, audio } = model.config;
if (vision?.kind !== "tower" || audio?.kind !== "tower") throw new Error("This model has no two towers.");

let state = 1;
const noise = () => (state = (Math.imul(state, 1103515245) + 12345) >>> 0) >>> 24;
const picture = { pixels: Uint8Array.from({ length: width * height * 3 }, noise), width, height };
const samples = Float32Array.from({ length: seconds * SAMPLE_RATE }, () => noise() / 512 - 0.25);

/** Runs something once and then as often as asked; milliseconds of each time but the first, and its last result. */
async function timed<T>(work: () => Promise<T> | T): Promise<{ times: number[]; result: T }> {
  let result = await work();
  const times: number[] = [];
  for (let i = 0; i < repetitions; i++) {
    const start = performance.now();
    result = await work();
    times.push(performance.now() - start);
  }
  return { times, result };
}

const { patchSize, poolingKernelSize } = vision;
const cut = await timed(() => cutPatches(picture, tokens, { patchSize, poolingKernelSize, merged: false }));
const seen = await timed(() => towers.embedImage(cut.result));
const afterImage = towers.activationBytes;
const mel = await timed(() => logMel(samples));
const heard = await timed(() => towers.embedAudio(mel.result));
const memory = model.memory();
console.log(`model         ${words[0] ?? "tiny"}, precision ${values.precision ?? "fast"}`);
console.log(`patches       ${spread(cut.times)} ms for ${cut.result.columns} × ${cut.result.rows}`);
console.log(`vision tower  ${spread(seen.times)} ms for ${seen.result.tokens} soft tokens`);
console.log(`log-mel       ${spread(mel.times)} ms for ${mel.result.valid.length} frames`);
console.log(`audio tower   ${spread(heard.times)} ms for ${heard.result.tokens} soft tokens`);
const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(0)} MiB`;
console.log(
  `activations   ${mib(afterImage)} of the vision tower, ${
    mib(towers.activationBytes - afterImage)
  } of the audio tower`,
);
console.log(
  `device        peak ${mib(memory.peak)}, mapped ${mib(memory.mapped)}, copied ${mib(memory.copied)}`,
);
