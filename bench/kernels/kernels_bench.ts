/**
 * Times the kernels of a model's schedule, each with its own sizes, on any device; afterwards GB/s and the share of what the
 * device's memory can do, measured in the same run.
 *
 *     deno bench -A bench/kernels                                          # E4B's ops on the CPU
 *     deno bench -A bench/kernels -- --device metal --model e2b
 *     deno bench -A bench/kernels -- --fusion                              # fused ops against elementary ones
 *     deno bench -A bench/kernels -- --format q4_k                         # matrices in another format
 *     deno bench -A bench/kernels -- --only "gate+up"                      # those whose name contains it
 *
 * A run goes through as many copies of the ops as have `--megabytes` of distinct weights (512 on a GPU, 1,024 on the CPU), so no
 * cache holds them; deno's figures are for a run, the table's for one copy by the device's clock.
 */
import { Device, type DeviceKind } from "../../ffi/device.ts";
import { parseFlags } from "../../src/cli/args.ts";
import { table } from "../../src/cli/terminal.ts";
import { shapes } from "../synthetic.ts";
import { type KernelCase, kernelCases, OTHER_FORMATS, withFormat } from "./cases.ts";
import { fusionCases } from "./fusion.ts";
import { KernelProblem } from "./problem.ts";
import { roofline } from "./roofline.ts";

const { values } = parseFlags(Deno.args, {
  device: { type: "string", choices: ["cpu", "metal", "cuda"], help: "where to run; default cpu" },
  model: { type: "string", choices: Object.keys(shapes), help: "whose sizes; default e4b" },
  fusion: { type: "boolean", help: "time fused ops against the elementary ops that they stand for" },
  only: { type: "string", help: "cases whose name contains this" },
  rows: { type: "number", help: "rows of the fusions; default 1" },
  format: {
    type: "string",
    choices: OTHER_FORMATS,
    help: "format of quantised matrices; default affine of 4 bits",
  },
  megabytes: { type: "number", help: "distinct weights that a run goes through" },
});
const kind = (values.device ?? "cpu") as DeviceKind;
const model = values.model ?? "e4b";
const leastBytes = (values.megabytes ?? (kind === "cpu" ? 1024 : 512)) * 1e6;

const device = await Device.open(kind);
const bound = await roofline(device, leastBytes);

/** Device seconds of one copy, in the order of the benches. */
const timed = new Map<KernelCase, { seconds: number; bytes: number; flops: number; kernels: string }>();

/** The case that a bench is at; the one before is released first, since both might not fit. */
let current: { case: KernelCase; problem: KernelProblem } | undefined;

async function ready(c: KernelCase): Promise<KernelProblem> {
  if (current?.case === c) return current.problem;
  current?.problem[Symbol.dispose]();
  current = undefined;
  // A CPU spends the time of a prompt's product on arithmetic: one copy is enough.
  const problem = await KernelProblem.create(device, c, kind === "cpu" && c.rows > 16 ? 0 : leastBytes);
  current = { case: c, problem };
  const seconds = await problem.time(repetitionsOf(c));
  timed.set(c, { seconds, ...problem.cost, kernels: problem.kernels() });
  return problem;
}

function repetitionsOf(c: KernelCase): number {
  return c.rows > 16 ? 5 : 10;
}

function bench(c: KernelCase, name: string, options: Partial<Deno.BenchDefinition> = {}): void {
  Deno.bench({
    name,
    n: repetitionsOf(c),
    warmup: 1,
    ...options,
    async fn(b) {
      const problem = await ready(c);
      b.start();
      problem.run();
      b.end();
    },
  });
}

const wanted = (name: string) => values.only === undefined || name.includes(values.only);
const time = (seconds: number) =>
  seconds < 1e-3 ? `${(seconds * 1e6).toPrecision(3)} µs` : `${(seconds * 1e3).toPrecision(3)} ms`;
const inFormat = (c: KernelCase): KernelCase =>
  values.format === undefined ? c : { ...c, ops: c.ops.map((op) => withFormat(op, values.format!)) };
const kernels = values.fusion ? [] : kernelCases(model).filter(({ name }) => wanted(name)).map(inFormat);
const fusions = values.fusion ? fusionCases(model, values.rows ?? 1).filter(({ name }) => wanted(name)) : [];
for (const c of kernels) bench(c, c.name);
for (const { name, fused, elementary } of fusions) {
  bench(elementary, "elementary", { group: name, baseline: true });
  bench(fused, "fused", { group: name });
}

globalThis.addEventListener("unload", () => {
  const { name, level, threads } = device.info();
  const where = [name, level, ...(threads > 0 ? [`${threads} threads`] : [])].join(", ");
  console.log(`\n${where}; ${model}; memory ${(bound.bandwidth / 1e9).toFixed(1)} GB/s ${bound.how}\n`);
  const rows = kernels.flatMap((c) => {
    const found = timed.get(c);
    if (!found) return [];
    const { seconds, bytes, flops, kernels } = found;
    return [[
      c.name,
      time(seconds),
      (bytes / seconds / 1e9).toFixed(1),
      `${(100 * bytes / seconds / bound.bandwidth).toFixed(0)} %`,
      (flops / seconds / 1e12).toPrecision(3),
      c.rows === 1 ? kernels : "",
    ]];
  });
  if (rows.length > 0) {
    console.log(
      table([["op", "device time", "GB/s", "of memory", "TFLOP/s", "kernels"], ...rows]),
    );
  }
  const ratios = fusions.flatMap(({ name, fused, elementary }) => {
    const [one, many] = [timed.get(fused), timed.get(elementary)];
    if (!one || !many) return [];
    return [[
      name,
      time(one.seconds),
      time(many.seconds),
      (many.seconds / one.seconds).toFixed(2),
    ]];
  });
  if (ratios.length > 0) console.log(table([["fusion", "fused", "elementary", "ratio"], ...ratios]));
  current?.problem[Symbol.dispose]();
  device[Symbol.dispose]();
});
