/**
 * All that needs a GPU machine, in one call: conformance, golden models, kernel timings, whole forwards, memory. Each section runs
 * in a process of its own, since a fault of a kernel costs its process the GPU.
 *
 *     deno run -A bench/device.ts [--device cuda] [--out FOLDER] [--only conformance,models,towers,kernels,forward,batch,drafts] [--shape e4b,26b-a4b]
 *         [--op linear] [--weights FOLDER] [--kv-cache q8] [--late] [--matrix-units]
 *         [--rows 1,8] [--product "gate+up,LM head"]
 *
 * Full-size random weights are made where it runs. Adds what each section found to device.json in the folder and prints all tables
 * once more at the end. `bench/device_pack.ts` readies a machine without a network or compiler.
 */
import { parseFlags } from "../src/cli/args.ts";
import { Device, type DeviceKind } from "../ffi/device.ts";
import { runsOn } from "../src/conformance/case.ts";
import { allCases } from "../src/conformance/cases.ts";
import { copyBandwidth } from "./bandwidth.ts";
import { timeBatches } from "./device/batch.ts";
import { conformance } from "./device/conformance.ts";
import { ForwardBench, type ForwardTiming, type KernelShare } from "./device/forward.ts";
import { type KernelTiming, timeKernels } from "./device/kernels.ts";
import { timeDrafted } from "./device/speculation.ts";
import { codedModels, goldenModels } from "./device/models.ts";
import { compareTowers, timeTowers } from "./device/towers.ts";
import type { KvFormat } from "../src/schedule/groups.ts";
import { type Shape, shapes, writeSynthetic } from "./synthetic.ts";
import { writeSyntheticDrafter } from "./synthetic_drafter.ts";

const { values } = parseFlags(Deno.args, {
  device: { type: "string", help: "cuda, metal or cpu" },
  out: { type: "string", help: "folder of device.json" },
  only: { type: "string", help: "sections, separated by commas" },
  shape: { type: "string", help: "model shapes of the forwards and timed kernels, separated by commas" },
  op: { type: "string", help: "conformance of this op alone" },
  weights: { type: "string", help: "folder for the random weights" },
  tokens: { type: "number", help: "tokens that each sequence of a batch draws" },
  "kv-cache": {
    type: "string",
    choices: ["f16", "f32", "q8"],
    help: "storage of keys and values in forwards",
  },
  late: { type: "boolean", help: "cuda: no kernel starts before the one that it follows is over" },
  rows: { type: "string", help: "rows of the timed kernels, separated by commas" },
  product: { type: "string", help: "timed kernels, separated by commas" },
  "matrix-units": { type: "boolean", help: "decode rows go through matrix units" },
});
const kind = (values.device ?? "cuda") as DeviceKind;
const SECTIONS = ["models", "towers", "kernels", "forward", "batch", "drafts", "conformance"];
/** That are about the models of --shape. */
const OF_SHAPES = ["kernels", "forward", "batch", "drafts"];
const sections = values.only?.split(",") ?? SECTIONS;
const shapeNames = values.shape?.split(",") ?? (values.weights ? ["e4b"] : ["e4b", "26b-a4b"]);
const kvFormat = (values["kv-cache"] ?? "f16") as KvFormat;
const CONTEXTS = [128, 1024, 8192];
const LONGEST = 8192;
/** Shapes whose forwards are taken apart into kernels. */
const TABLES = new Set(["e4b", "26b-a4b", "31b"]);
const SECTION_SECONDS = 170;

const report: Record<string, unknown> = {};
const say = (line: string) => console.log(line);
const us = (seconds: number) => (seconds * 1e6).toFixed(1).padStart(8);
const ms = (seconds: number) => (seconds * 1e3).toFixed(3);
const percent = (share: number) => `${(100 * share).toFixed(0)}%`.padStart(4);

/** Runs a section, or one op or model shape of it, in another process; returns its table. */
async function child(name: string, part: { op?: string; shape?: string } = {}): Promise<string> {
  const flags = Object.entries({ ...values, only: name, ...part }).flatMap(([flag, value]) =>
    value === undefined || value === false
      ? []
      : value === true
      ? [`--${flag}`]
      : [`--${flag}`, String(value)]
  );
  const args = [
    "run",
    "-A",
    "--no-check",
    "--no-lock",
    "--cached-only",
    new URL(import.meta.url).pathname,
    ...flags,
  ];
  const signal = AbortSignal.timeout(SECTION_SECONDS * 1e3);
  const started = performance.now();
  const { code, stdout } = await new Deno.Command(Deno.execPath(), { args, signal, stderr: "inherit" })
    .output();
  const text = new TextDecoder().decode(stdout);
  console.log(text);
  const what = [name, ...Object.values(part)].join(" ");
  const seconds = ((performance.now() - started) / 1e3).toFixed(1);
  return `${text}-- ${what}: ${seconds} s${code === 0 ? "" : `, ended with status ${code}`}\n`;
}

/** Adds what a section found to device.json: sections run in processes of their own, one after another. */
async function save(section: string): Promise<void> {
  if (values.out === undefined) return;
  await Deno.mkdir(values.out, { recursive: true });
  const file = `${values.out}/device.json`;
  const before = JSON.parse(await Deno.readTextFile(file).catch(() => "[]"));
  const shape = OF_SHAPES.includes(section) ? shapeNames[0] : undefined;
  const { op, late, "matrix-units": matrixUnits } = values;
  const all = [...before, { section, shape, op, late, matrixUnits, kvFormat, ...report }];
  await Deno.writeTextFile(file, JSON.stringify(all, null, 1));
}

if (
  sections.length > 1 || (sections[0] === "conformance" && values.op === undefined) ||
  (OF_SHAPES.includes(sections[0]) && shapeNames.length > 1)
) {
  const tables: string[] = [];
  for (const name of sections) {
    const table = values.op === undefined
      ? allCases().filter((c) => runsOn("cuda", c)).map(({ op }) => op)
      : [values.op];
    const parts = name === "conformance"
      ? [...new Set(table)].map((op) => ({ op }))
      : OF_SHAPES.includes(name)
      ? shapeNames.map((shape) => ({ shape }))
      : [{}];
    for (const part of parts) tables.push(await child(name, part));
  }
  console.log(`\n==== all tables\n${tables.join("")}`);
  Deno.exit(0);
}

/** Runs the section if it is the one of this process. */
async function section(name: string, run: () => Promise<void>): Promise<void> {
  if (sections[0] !== name) return;
  try {
    await run();
  } catch (error) {
    const text = error instanceof Error ? error.stack ?? error.message : String(error);
    report.failure = text;
    say(`${name} FAILED: ${text}`);
  }
  await save(name);
}

/** Calls `run` with the shape that the section is about and a folder with random weights of it, `scratch` a folder for more. */
async function withWeights(
  run: (shape: Shape, folder: string, scratch: string) => Promise<void>,
): Promise<void> {
  const shape = shapes[shapeNames[0]];
  if (shape === undefined) throw new Error(`there is no shape "${shapeNames[0]}"`);
  const scratch = await Deno.makeTempDir({ prefix: "markbase-device-" });
  try {
    const folder = values.weights ?? `${scratch}/model`;
    const writing = performance.now();
    if (values.weights === undefined) await writeSynthetic(shape, folder);
    say(`shape        ${shapeNames[0]}, written in ${((performance.now() - writing) / 1e3).toFixed(1)} s`);
    await run(shape, folder, scratch);
  } finally {
    await Deno.remove(scratch, { recursive: true });
  }
}

const deviceOptions = {
  earlyStart: values.late ? false : undefined,
  matrixUnits: values["matrix-units"],
};
using device = await Device.open(kind, deviceOptions);
const info = device.info();
report.device = info;
const bandwidth = sections[0] === "kernels" || sections[0] === "forward"
  ? copyBandwidth(device, 4 * 2 ** 30)
  : 0;
if (bandwidth > 0) {
  report.copyBandwidth = bandwidth;
  const gibibytes = (info.memoryBytes / 2 ** 30).toFixed(0);
  say(`device       ${info.name}, ${info.level}, ${info.system ?? ""}, ${gibibytes} GiB`);
  say(`copy         ${(bandwidth / 1e9).toFixed(0)} GB/s (bytes read and written)`);
}

await section("conformance", async () => {
  const result = await conformance(device, values.op);
  report.conformance = result;
  report.pipelines = device.info().pipelines;
  for (const { op, precision, cases, failed, worst } of result.summary) {
    say(`conformance  ${op} ${precision}: ${cases - failed} of ${cases}, worst ${worst.toExponential(1)}`);
  }
  for (const row of result.failures.slice(0, 6)) {
    say(
      `  FAIL ${row.op} ${row.case} ${row.precision}: ${row.error.toExponential(1)} > ${row.tolerance} ${
        row.reason?.slice(0, 200) ?? ""
      }`,
    );
  }
});

await section("models", async () => {
  const results = await goldenModels(kind);
  report.models = results;
  for (const { model, precision, cosine, difference, greedy } of results) {
    say(
      `model        ${model} ${precision}: cosine ${cosine.toFixed(6)}, difference ${
        difference.toExponential(1)
      }, greedy ${greedy[0]} of ${greedy[1]}`,
    );
  }
  const coded = await codedModels(kind);
  report.codedModels = coded;
  for (const { model, precision, divergence, share } of coded) {
    say(
      `codes        ${model} ${precision}: ${divergence.toFixed(4)} nats from f16; from the CPU ${
        share.toFixed(3)
      } of what codes change`,
    );
  }
});

await section("towers", async () => {
  const results = await compareTowers(kind);
  report.towers = results;
  for (const { model, what, precision, cosine, difference } of results) {
    say(
      `towers       ${model} ${what} ${precision}: cosine ${cosine.toFixed(6)}, difference ${
        difference.toExponential(1)
      }`,
    );
  }
  const times = await timeTowers(kind, kind === "cpu" ? 1 : 5);
  report.towerTimes = times;
  for (const what of ["image", "audio"] as const) {
    const { tokens, first, median } = times[what];
    say(`towers       e4b ${what}: ${median.toFixed(1)} ms, first ${first.toFixed(0)} ms; ${tokens} tokens`);
  }
  say(`towers       activations ${(times.activations / 2 ** 20).toFixed(0)} MiB`);
});

await section("kernels", async () => {
  const shape = shapes[shapeNames[0]];
  if (shape === undefined) throw new Error(`there is no shape "${shapeNames[0]}"`);
  const results: KernelTiming[] = await timeKernels(
    device,
    shape,
    values.rows?.split(",").map(Number) ?? [1, 2, 4, 8, 16, 512],
    values.product?.split(","),
  );
  report.kernels = results;
  for (const { name, rows, seconds, bytesPerSecond, kernels, weightBytes } of results) {
    say(
      `kernel       ${name.padEnd(14)} r${String(rows).padEnd(3)} ${us(seconds)} us ${
        (weightBytes / 1e6).toFixed(1).padStart(6)
      } MB ${(bytesPerSecond / 1e9).toFixed(0).padStart(5)} GB/s ${
        bandwidth > 0 ? percent(bytesPerSecond / bandwidth) : ""
      }  ${rows === 1 ? kernels : ""}`,
    );
  }
});

await section("forward", () =>
  withWeights(async (_, folder) => {
    const timings: ForwardTiming[] = [];
    {
      const opening = performance.now();
      using bench = await ForwardBench.open(device, folder, LONGEST, kvFormat);
      say(
        `open         ${((performance.now() - opening) / 1e3).toFixed(2)} s: ${
          JSON.stringify(device.memory())
        }`,
      );
      for (const context of CONTEXTS) timings.push(await bench.time("decode", 1, context));
      for (const rows of [2, 4, 8, 16]) timings.push(await bench.time("decode", rows, 128));
      timings.push(await bench.time("prefill", 512, 512));
      timings.push(await bench.time("prefill", 512, 8192));
      await bench.checkFinite();
      say("finite       no NaN, no Inf in the output of any op");
      report.memory = device.memory();
    }
    report.forward = timings;
    for (const t of timings) {
      say(
        `forward      ${t.what} ${t.rows} at ${t.context}: device ${ms(t.deviceSeconds)} ms, wall ${
          ms(t.wallSeconds)
        } ms, first ${ms(t.firstSeconds)} ms; ${t.dispatches} dispatches, ${(t.bytes / 1e9).toFixed(3)} GB, ${
          (t.bytes / t.deviceSeconds / 1e9).toFixed(0)
        } GB/s, ${(t.flops / t.deviceSeconds / 1e12).toFixed(1)} TFLOP/s`,
      );
    }
    if (kind !== "cuda" || !TABLES.has(shapeNames[0])) return; // the others do not time kernels
    using timed = await Device.open(kind, { ...deviceOptions, timeKernels: true });
    using bench = await ForwardBench.open(timed, folder, LONGEST, kvFormat);
    const tables: Record<string, KernelShare[]> = {};
    for (
      const [what, rows, context] of [
        ["decode", 1, 128],
        ["decode", 1, 8192],
        ["decode", 8, 128],
        ["prefill", 512, 512],
      ] as const
    ) {
      const shares = await bench.kernels(what, rows, context);
      tables[`${what} ${rows} at ${context}`] = shares;
      const sum = shares.reduce((total, { seconds }) => total + seconds, 0);
      say(`kernels of   ${what} ${rows} at ${context}: ${ms(sum)} ms one after another`);
      for (const { kernel, ops, seconds, bytes } of shares.slice(0, 12)) {
        say(
          `  ${percent(seconds / sum)} ${String(ops).padStart(3)} × ${us(seconds / ops)} us ${
            (bytes / seconds / 1e9).toFixed(0).padStart(5)
          } GB/s  ${kernel}`,
        );
      }
    }
    report.kernelShares = tables;
  }));

await section("batch", () =>
  withWeights(async (_, folder) => {
    const { batches, verifies } = await timeBatches(
      folder,
      kind,
      [1, 2, 4, 8, 16],
      values.tokens ?? 64,
      values["matrix-units"] ?? false,
    );
    report.batches = batches;
    report.verifies = verifies;
    for (const { batch, tokensPerSecond, secondsPerToken } of batches) {
      say(
        `batch        ${shapeNames[0]} ${String(batch).padStart(2)}: ${
          tokensPerSecond.toFixed(1)
        } tokens/s, ${ms(secondsPerToken)} ms a token, ${ms(secondsPerToken / batch)} ms a token and row`,
      );
    }
    for (const { rows, seconds } of verifies) {
      say(
        `verify       ${shapeNames[0]} ${rows} rows: ${ms(seconds)} ms, ${
          (seconds / verifies[0].seconds).toFixed(2)
        } of one row`,
      );
    }
  }));

await section("drafts", () =>
  withWeights(async (shape, folder, scratch) => {
    if (shape.globalKvHeads !== undefined) return say(`drafts       no drafter for ${shapeNames[0]}`);
    const drafter = `${scratch}/drafter`;
    await writeSyntheticDrafter(shape, drafter);
    const timings = await timeDrafted(
      folder,
      drafter,
      kind,
      [1, 2, 3, 4, 7],
      values.tokens ?? 32,
      values["matrix-units"] ?? false,
    );
    report.drafts = timings;
    for (const { drafts, seconds, dispatchesPerToken, tokensPerSecond } of timings) {
      say(
        `drafts       ${shapeNames[0]} ${drafts} right: ${ms(seconds)} ms, ${
          tokensPerSecond.toFixed(1)
        } tokens/s, ${dispatchesPerToken.toFixed(1)} dispatches a token`,
      );
    }
  }));
