/**
 * Time and memory of a model's towers: one picture and one clip of sound, as `src/media` prepares them.
 *
 *     deno run -A bench/synthetic.ts e4b-towers FOLDER
 *     deno run -A bench/towers.ts FOLDER [--device cpu] [--precision fast] [--width 960] [--height 672] [--tokens 280]
 *         [--seconds 30] [--repetitions 3] [--transformers PYTHON] [--wait]
 *
 * Pixels and samples are noise; neither tower looks at what it sees. PYTHON has the packages that
 * `peers/transformers_towers.py` names: its towers then run in turn with these, in bf16 and in f32.
 */
import { parseFlags } from "../src/cli/args.ts";
import { loadFlags, loadOptions } from "../src/cli/options.ts";
import { loadWith } from "../src/engine/load.ts";
import { logMel, SAMPLE_RATE } from "../src/media/mel.ts";
import { cutPatches } from "../src/media/patches.ts";
import { Peer, residentOf, transformersTowers, WAIT, waitForLine } from "./peers/peers.ts";
import { spread } from "./statistics.ts";

const { values, words } = parseFlags(Deno.args, {
  ...loadFlags,
  width: { type: "number", help: "of the picture in pixels" },
  height: { type: "number", help: "of the picture in pixels" },
  tokens: { type: "number", help: "soft tokens of the picture at most" },
  seconds: { type: "number", help: "length of the sound" },
  repetitions: { type: "number", help: "how often" },
  transformers: { type: "string", help: "Python with torch and transformers" },
  wait: WAIT,
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

const { patchSize, poolingKernelSize } = vision;
const cut = () => cutPatches(picture, tokens, { patchSize, poolingKernelSize, merged: false });
const patches = await cut(), frames = logMel(samples);
const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(0)} MiB`;

/** Who sees and hears, milliseconds of each time, and the number of soft tokens. */
interface Runner {
  name: string;
  run: () => Promise<number>;
  /** what makes it fast from the first time on */ warmUp: () => Promise<unknown>;
  times: number[];
  softTokens: number;
}
const runners: Runner[] = [];
/** `run` returns soft tokens. */
function add(
  name: string,
  run: () => Promise<number> | number,
  warmUp: () => Promise<unknown> | unknown = run,
) {
  runners.push({
    name,
    run: async () => await run(),
    warmUp: async () => await warmUp(),
    times: [],
    softTokens: 0,
  });
}
add("patches", async () => (await cut(), 0));
add("log-mel", () => (logMel(samples), 0));
let afterImage = 0;
add("vision tower", async () => {
  const { tokens } = await towers.embedImage(patches);
  afterImage ||= towers.activationBytes;
  return tokens;
});
using stack = new DisposableStack();
const peers: Peer[] = [];
if (values.transformers !== undefined) {
  for (const dtype of ["bfloat16", "float32"] as const) {
    const threads = navigator.hardwareConcurrency;
    peers.push(stack.use(new Peer(transformersTowers(values.transformers, words[0], threads, dtype))));
    await peers.at(-1)!.ask("load");
  }
}
for (const peer of peers) {
  const see = (columns: number, rows: number) => peer.ask("vision", columns, rows);
  add(
    `vision tower, ${peer.name}`,
    async () => (await see(patches.columns, patches.rows)).tokens!,
    () => see(12, 9),
  );
}
add("audio tower", async () => (await towers.embedAudio(frames)).tokens);
for (const peer of peers) {
  const hear = (frames: number) => peer.ask("audio", frames);
  add(`audio tower, ${peer.name}`, async () => (await hear(frames.valid.length)).tokens!, () => hear(100));
}
for (const runner of runners) await runner.warmUp();
if (values.wait) await waitForLine();
for (let i = 0; i < repetitions; i++) {
  for (const runner of runners) {
    const start = performance.now();
    runner.softTokens = await runner.run();
    runner.times.push(performance.now() - start);
    console.error(`${runner.name}: ${runner.times.at(-1)!.toFixed(0)} ms`);
  }
}

console.log(`model  ${words[0] ?? "tiny"}, precision ${values.precision ?? "fast"}`);
console.log(`${patches.columns} × ${patches.rows} patches, ${frames.valid.length} frames`);
const column = Math.max(...runners.map(({ name }) => name.length));
for (const { name, times, softTokens } of runners) {
  const made = softTokens > 0 ? ` for ${softTokens} soft tokens` : "";
  console.log(`${name.padEnd(column)}  ${spread(times)} ms${made}`);
}
const memory = model.memory();
console.log(
  `activations   ${mib(afterImage)} of the vision tower, ${
    mib(towers.activationBytes - afterImage)
  } of the audio tower`,
);
console.log(
  `device        peak ${mib(memory.peak)}, mapped ${mib(memory.mapped)}, copied ${mib(memory.copied)}`,
);
for (
  const { name, resident } of [
    { name: "markbase", resident: await residentOf("self") },
    ...await Promise.all(peers.map(async (peer) => ({ name: peer.name, resident: await peer.resident() }))),
  ]
) {
  console.log(`resident      ${name} ${mib(resident.all)}, of files ${mib(resident.files)}`);
}
