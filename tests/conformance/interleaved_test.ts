/** Weights with interleaved rows on the CPU device: which get them, what they take, how long they live. */
import { assert, assertEquals } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { openCheckpoint } from "../../src/checkpoint/open.ts";
import { readClips } from "../../src/checkpoint/towers.ts";
import { BLOCK_FORMATS, blockColumns, formatName, FORMATS } from "../../src/conformance/case.ts";
import { linearProblem } from "../../src/conformance/cases/linear.ts";
import { type Problem, ProblemBuilder, type WeightFormat } from "../../src/conformance/problem.ts";
import { Random } from "../../src/conformance/random.ts";
import { lackingLevels, LEVELS } from "./levels.ts";
import { equal, execute } from "../../src/conformance/runner.ts";
import { layOutWeights } from "../../src/engine/weights.ts";
import type { Tensor } from "../../src/schedule/tensor.ts";
import { FIRST_TOWER_WEIGHTS } from "../../src/schedule/tower.ts";
import { towerPlan } from "../../src/schedule/tower_plan.ts";
import { TINY } from "../support/models.ts";
import { deno } from "../support/process.ts";
import { GGUF_BLOCKS } from "../../src/checkpoint/gguf_types.ts";

const lacking = await lackingLevels();

const AFFINE4: WeightFormat = { kind: "affine", bits: 4, group: 64, scales: "bf16" };

function problemOf(format: WeightFormat, { n = [32], exact = false, k = 768, rows = 3 } = {}): Problem {
  return linearProblem({ rows, k, n, format }, 5, exact);
}

/** Buffers of the problem's plan, filled. */
function bind(device: Device, problem: Problem, scope: DisposableStack) {
  return problem.buffers.map((bytes) => {
    const buffer = scope.use(device.createBuffer(bytes.length));
    buffer.write(0, bytes);
    return buffer;
  });
}

/** Bytes that a pass of the problem keeps in another layout. */
async function repackedOf(device: Device, problem: Problem): Promise<number> {
  using scope = new DisposableStack();
  const pass = scope.use(await device.compile(problem.plan, bind(device, problem, scope)));
  assertEquals(device.memory().repacked, pass.info().repackedBytes);
  return device.memory().repacked;
}

/** The outputs of a problem in fast mode, as f32. */
async function outputsOf(device: Device, problem: Problem): Promise<Float32Array> {
  return new Float32Array((await execute(device, problem, false)).at(-1)!.slice().buffer);
}

/** Largest difference of two results, as a part of the largest number. */
function differenceOf(a: Float32Array, b: Float32Array): number {
  assertEquals(a.length, b.length);
  const largest = b.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  return a.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i])), 0) / largest;
}

Deno.test("formats with codes of 4, 5, 6 and 8 bits are interleaved, at about the size that they have in a file", async () => {
  using device = await Device.open("cpu");
  for (const format of [...FORMATS, ...BLOCK_FORMATS]) {
    const name = formatName(format);
    const found = await repackedOf(device, problemOf(format));
    const listed = format.kind === "gguf"
      ? ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"].includes(format.type)
      : format.kind === "affine" && [4, 8].includes(format.bits) && format.scales !== "f32";
    if (!listed) {
      assertEquals(found, 0, name);
      continue;
    }
    const stored = format.kind === "gguf"
      ? 32 * 768 / blockColumns(format) * GGUF_BLOCKS[format.type].bytes
      : format.kind === "affine"
      ? 32 * 768 * (format.bits / 8 + 4 / format.group)
      : 0;
    assert(found >= stored && found <= 1.03 * stored, `${name}: ${found} of ${stored} bytes`);
  }
});

Deno.test("weights stay where they are in exact mode, in shapes without whole bands, and where the device is told so", async () => {
  using device = await Device.open("cpu");
  using inPlace = await Device.open("cpu", { interleave: false });
  assertEquals(await repackedOf(device, problemOf(AFFINE4, { exact: true })), 0);
  assertEquals(await repackedOf(device, problemOf(AFFINE4, { n: [33] })), 0);
  assertEquals(await repackedOf(device, problemOf({ kind: "gguf", type: "q4_0" }, { k: 96 })), 0);
  assertEquals(await repackedOf(inPlace, problemOf(AFFINE4)), 0);
  assert(await repackedOf(device, problemOf(AFFINE4, { n: [32, 33] })) > 0, "the first of two weights");
});

/**
 * Bytes that a pass keeps in another layout of a Q4_0 weight of about this many zeros in a mapped file. `meanwhile` is called while
 * the pass lives.
 */
export async function repackedOfFile(
  device: Device,
  bytes: number,
  meanwhile: () => Promise<void> = async () => {},
): Promise<number> {
  const k = 8192, n = 16 * Math.ceil(bytes / (16 * k / 32 * 18)), length = n * k / 32 * 18;
  const { plan, buffers } = linearProblem(
    { rows: 1, k, n: [16], format: { kind: "gguf", type: "q4_0" } },
    5,
    false,
  );
  const [op] = plan.ops;
  assert(op.kind === "linear");
  const weight = { ...op.weights[0], shape: [n, k], offset: 0 },
    y: Tensor = { ...op.y, shape: ["rows", n], offset: 0 };
  plan.ops[0] = { ...op, weights: [weight], y };
  plan.outputs = [y];
  plan.buffers[0].bytes = 4 * n * plan.limits.rows;
  plan.buffers[2].bytes = length;
  using scope = new DisposableStack();
  const path = await Deno.makeTempFile();
  try {
    await Deno.truncate(path, length); // with nothing on the disk
    const arena = scope.use(device.createBuffer(plan.buffers[0].bytes));
    const inputs = scope.use(device.createBuffer(buffers[1].length));
    scope.use(await device.compile(plan, [arena, inputs, scope.use(await device.mapFile(path, 0, length))]));
    const { repacked, replaced } = device.memory();
    assert(replaced === 0 || replaced === length);
    await meanwhile();
    return repacked;
  } finally {
    await Deno.remove(path);
  }
}

Deno.test("plans of towers, whose passes are made for one run each, read weights where they lie", async () => {
  const checkpoint = await openCheckpoint(TINY);
  const { config, files } = checkpoint, towers = checkpoint.towers();
  const places = {
    ...layOutWeights(towers, files, FIRST_TOWER_WEIGHTS, 1),
    clips: await readClips(files, towers),
  };
  for (const part of ["vision", "audio"] as const) {
    const { plans } = towerPlan(part, config, towers, places, {
      limits: { rows: 32, out_rows: 16 },
      exact: false,
    });
    assert(plans.length > 0 && plans.every(({ inPlace }) => inPlace), part);
  }
  using device = await Device.open("cpu");
  const problem = problemOf(AFFINE4);
  assertEquals(await repackedOf(device, { ...problem, plan: { ...problem.plan, inPlace: true } }), 0);
});

Deno.test("weights stay where they are where copies would take more than half of the memory", async () => {
  using device = await Device.open("cpu");
  assert(await repackedOfFile(device, 2 ** 20) > 0);
  const { total } = Deno.systemMemoryInfo();
  assertEquals(await repackedOfFile(device, 0.51 * total), 0);
});

Deno.test("copies of all devices count towards half of the memory", async () => {
  using one = await Device.open("cpu");
  using other = await Device.open("cpu");
  const half = Deno.systemMemoryInfo().total / 2;
  const taken = await repackedOfFile(one, 2 ** 26, async () => {
    assertEquals(await repackedOfFile(other, half - 2 ** 25), 0);
    assert(await repackedOfFile(other, 2 ** 20) > 0);
  });
  assert(taken >= 2 ** 26 && taken < 1.01 * 2 ** 26, `${taken}`); // so that the other alone would have fitted
});

Deno.test({
  name: "weights stay where they are where the system gives no room for copies",
  ignore: Deno.build.os !== "linux",
  async fn() {
    const program = `
import { Device } from ${JSON.stringify(new URL("../../ffi/device.ts", import.meta.url).href)};
import { repackedOfFile } from ${JSON.stringify(import.meta.url)};
using device = await Device.open("cpu");
const before = await repackedOfFile(device, 2 ** 20);
const pages = Number((await Deno.readTextFile("/proc/self/statm")).split(" ")[0]);
const limit = 4096 * pages + 1.5 * 2 ** 29;
await new Deno.Command("prlimit", { args: ["--pid", String(Deno.pid), "--as=" + limit] }).output();
console.log(before > 0, await repackedOfFile(device, 2 ** 29));
`;
    const { stdout, stderr } = await deno(["run", "-A", "--quiet", "-"], { input: program });
    assertEquals(stdout, "true 0\n", stderr);
  },
});

Deno.test("interleaved weights are made once for all passes and go with the last of them", async () => {
  using device = await Device.open("cpu");
  using scope = new DisposableStack();
  const problem = problemOf(AFFINE4);
  const buffers = bind(device, problem, scope);
  const first = await device.compile(problem.plan, buffers);
  const { repacked } = device.memory();
  const second = await device.compile(problem.plan, buffers);
  assert(repacked > 0);
  assertEquals(device.memory().repacked, repacked);
  first.close();
  assertEquals(device.memory().repacked, repacked);
  second.close();
  assertEquals(device.memory().repacked, 0);
});

Deno.test("products with interleaved weights are those of weights in place but for the order of sums", async () => {
  using device = await Device.open("cpu");
  using inPlace = await Device.open("cpu", { interleave: false });
  for (const format of [AFFINE4, { kind: "gguf", type: "q6_k" } as const]) {
    const [a, b] = await Promise.all([device, inPlace].map((each) => outputsOf(each, problemOf(format))));
    assertEquals(a.length, 3 * 32);
    assert(differenceOf(a, b) <= 1e-5, `${formatName(format)}: ${differenceOf(a, b)}`);
  }
});

Deno.test("GeGLU multiplies interleaved weights beside others that lie in place, in chunks that fit both", async () => {
  const q4: WeightFormat = { kind: "gguf", type: "q4_k" };
  const others: WeightFormat[] = [{ kind: "gguf", type: "q3_k" }, { kind: "gguf", type: "iq4_xs" }, {
    kind: "bf16",
  }];
  const problems = others.flatMap((other) =>
    // Of 2048 columns q3_k takes 36 rows together, of 8192 bf16 takes 8.
    [[q4, other], [other, q4]].flatMap((format) =>
      [3, 20].map((rows) => {
        const k = other.kind === "bf16" ? 8192 : 2048;
        const problem = linearProblem({ rows, k, n: [80, 80], format, epilogue: "geglu" }, 5, false);
        return { name: `${format.map(formatName)}, ${rows} rows`, problem };
      })
    )
  );
  for (const level of LEVELS) {
    if (lacking.has(level)) continue;
    for (const threads of [1, 2]) {
      using device = await Device.open("cpu", { level, threads });
      using inPlace = await Device.open("cpu", { level, threads, interleave: false });
      for (const { name, problem } of problems) {
        const [a, b] = await Promise.all([device, inPlace].map((each) => outputsOf(each, problem)));
        assert(differenceOf(a, b) <= 1e-4, `${level}, ${threads} threads, ${name}: ${differenceOf(a, b)}`);
      }
    }
  }
});

Deno.test("weights of the same codes with other scales are weights of their own", async () => {
  using device = await Device.open("cpu");
  using inPlace = await Device.open("cpu", { interleave: false });
  const builder = new ProblemBuilder(new Random(3), [{ position: 0, rowClass: "decode" }]);
  const values = new Random(4).normals(768);
  const x = builder.activation("x", ["rows", 768], values);
  const weight = builder.matrix("w", 32, 768, AFFINE4);
  const swapped = { ...weight, scales: weight.biases, biases: weight.scales };
  const y = builder.output("y", ["rows", 64]);
  const epilogue = { kind: "none" } as const;
  const problem = builder.finish(
    { kind: "linear", x, weights: [weight, swapped], epilogue, y, eps: 1e-6 },
    false,
  );
  const [a, b] = await Promise.all([device, inPlace].map((each) => outputsOf(each, problem)));
  assertEquals(a.length, 64);
  assert(a.some((x, i) => Math.abs(x - a[(i + 32) % 64]) > 0.1), "the two differ");
  assert(differenceOf(a, b) <= 1e-5, `${differenceOf(a, b)}`);
});

/** A tied head: rows of the table for some tokens, and their products with all rows. */
function tiedProblem(format: WeightFormat): Problem {
  const tokens = [0, 31, 17, 16, 2];
  const builder = new ProblemBuilder(
    new Random(3),
    tokens.map((token, position) => ({ token, position, rowClass: "decode" })),
    { vocabulary: 32 },
  );
  const table = builder.matrix("table", 32, 768, format);
  const rows = builder.output("rows", ["rows", 768]);
  const y = builder.output("y", ["rows", 32]);
  const problem = builder.finish({ kind: "embed", table, y: rows, scale: 1 }, false);
  const none = { kind: "none" } as const;
  problem.plan.ops.push({ kind: "linear", x: rows, weights: [table], epilogue: none, y, eps: 1e-6 });
  return problem;
}

Deno.test("single rows of an interleaved weight are the rows of the weight, bit for bit", async () => {
  using inPlace = await Device.open("cpu", { interleave: false });
  for (const level of LEVELS) {
    if (lacking.has(level)) continue;
    using device = await Device.open("cpu", { level });
    for (const format of [...FORMATS, ...BLOCK_FORMATS]) {
      if (blockColumns(format) === 1) continue;
      const problem = tiedProblem(format);
      const [found, expected] = await Promise.all(
        [device, inPlace].map(async (each) => (await execute(each, problem, false)).at(-1)!),
      );
      const bytes = 5 * 768 * 4;
      assertEquals(found.length, bytes + 5 * 32 * 4);
      assert(equal(found.subarray(0, bytes), expected.subarray(0, bytes)), `${level} ${formatName(format)}`);
    }
  }
});
