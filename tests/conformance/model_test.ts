/** Whole fixture models on the CPU device: against the oracle layer by layer, and against themselves bit for bit. */
import { assert, assertEquals } from "@std/assert";
import type { Buffer } from "../../ffi/buffer.ts";
import { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { encodeInput, type RunInput } from "../../src/engine/input.ts";
import type { Plan } from "../../src/schedule/plan.ts";
import { OUTPUT, type TextPlan } from "../../src/schedule/text.ts";
import type { Dim, Tensor } from "../../src/schedule/tensor.ts";
import { fixture, type FixtureModel } from "../oracle/model.ts";
import { Oracle } from "../../src/conformance/oracle/run.ts";
import { fixtureModel, type Golden, MODELS, readGolden } from "../support/models.ts";
import { difference } from "../../src/conformance/compare.ts";
import { lackingLevels, LEVELS } from "./levels.ts";
import { equal } from "../../src/conformance/runner.ts";

const lacking = await lackingLevels();
const GUARD_BYTES = 4096;
const LOGITS = 2 ** OUTPUT.logits;

async function open(row: string): Promise<{ model: FixtureModel; golden: Golden }> {
  const folder = fixtureModel(row);
  assert(folder);
  return { model: await fixture(folder), golden: await readGolden(folder) };
}

/** Plans of one model on one device with common KV pages; guards follow the arena and the pages. */
class Runner implements Disposable {
  readonly #scope = new DisposableStack();
  readonly #buffers: Buffer[];
  readonly #plans: readonly Plan[];
  #passes: Pass[] = [];

  private constructor(device: Device, model: FixtureModel, plans: readonly Plan[]) {
    this.#plans = plans;
    const arena = Math.max(...plans.map((plan) => plan.buffers[0].bytes));
    this.#buffers = model.buffers(plans[0]).map((bytes, i) => {
      const guarded = plans[0].buffers[i].writable;
      const size = i === 0 ? arena : bytes.length;
      const buffer = this.#scope.use(device.createBuffer(size + (guarded ? GUARD_BYTES : 0)));
      if (guarded) buffer.fill(0, buffer.size, 0xff);
      if (i > 0) buffer.write(0, bytes);
      return buffer;
    });
  }

  static async create(device: Device, model: FixtureModel, ...plans: Plan[]): Promise<Runner> {
    const runner = new Runner(device, model, plans);
    for (const plan of plans) {
      runner.#passes.push(runner.#scope.use(await device.compile(plan, runner.#buffers)));
    }
    return runner;
  }

  /** Runs plan `index` and returns the selected outputs' bytes. */
  async run(index: number, input: RunInput): Promise<Uint8Array<ArrayBuffer>[]> {
    const outputs = this.#plans[index].outputs.filter((_, i) => input.outputMask / 2 ** i & 1);
    const rows = (dim: Dim) => dim === "rows" ? input.rows.length : input.outputs.length;
    const sizes = outputs.map(({ shape }) => rows(shape[0]) * (shape[1] as number) * 4);
    const output = new Uint8Array(sizes.reduce((a, b) => a + b, 0));
    await this.#passes[index].run(encodeInput(input), output);
    let at = 0;
    return sizes.map((size) => output.slice(at, at += size));
  }

  /** `rows` rows of an activation that nothing has overwritten, f32 [rows, n]. */
  read({ shape, offset }: Tensor, rows: number): Uint8Array<ArrayBuffer> {
    const bytes = new Uint8Array(rows * (shape[1] as number) * 4);
    this.#buffers[0].read(offset, bytes);
    return bytes;
  }

  /** Throws where a guard was written. */
  checkGuards(): void {
    this.#buffers.forEach((buffer, i) => {
      if (!this.#plans[0].buffers[i].writable) return;
      const guard = new Uint8Array(GUARD_BYTES);
      buffer.read(buffer.size - GUARD_BYTES, guard);
      assert(
        guard.every((byte) => byte === 0xff),
        `the guard after ${this.#plans[0].buffers[i].name} was written`,
      );
    });
  }

  [Symbol.dispose](): void {
    this.#scope.dispose();
  }
}

function test(name: string, run: (device: Device) => Promise<void>) {
  for (const level of LEVELS) {
    Deno.test({
      name: `model: ${name} on cpu ${level}`,
      ignore: lacking.has(level),
      async fn() {
        using device = await Device.open("cpu", { level, threads: 2 });
        await run(device);
      },
    });
  }
}

/** The oracle's logits, then the states between layers. */
function reference(plan: TextPlan, model: FixtureModel, input: RunInput): Float64Array[] {
  const oracle = new Oracle(plan, model.buffers(plan));
  const outputs = oracle.run(input);
  return [outputs[OUTPUT.logits], ...plan.states.map((state) => oracle.value(state, input))];
}

const every = (ids: readonly number[]) => ids.map((_, i) => i);

for (const row of [...MODELS.small, ...MODELS.experts]) {
  /** the oracle's outputs by schedule and prompt, the same for every level */
  const references = new Map<string, Float64Array[]>();
  test(`${row} in exact mode agrees with the oracle after every layer, fused and elementary`, async (device) => {
    const { model, golden } = await open(row);
    for (const fuse of [true, false]) {
      const plan = model.plan({ variant: "decode", exact: true, fuse, trace: true, checkFinite: true });
      using runner = await Runner.create(device, model, plan);
      for (const { name, input_ids: ids } of golden.prompts) {
        const input = model.input(ids, 0, every(ids), LOGITS);
        const key = `${fuse} ${name}`;
        const expected = references.get(key) ?? reference(plan, model, input);
        references.set(key, expected);
        const found = [
          ...await runner.run(0, input),
          ...plan.states.map((state) => runner.read(state, ids.length)),
        ];
        found.forEach((bytes, i) => {
          const { error } = difference(new Float32Array(bytes.buffer), expected[i]);
          assert(error <= 1e-4, `${name}: ${i === 0 ? "logits" : `state ${i - 1}`} off by ${error}`);
        });
      }
      runner.checkGuards();
    }
  });
}

for (const row of MODELS.experts) {
  test(`${row} chooses the golden experts with the golden shares in every layer`, async (device) => {
    const { model, golden } = await open(row);
    for (const fuse of [true, false]) {
      const plan = model.plan({ variant: "decode", exact: true, fuse, trace: true });
      using runner = await Runner.create(device, model, plan);
      for (const { name, input_ids: ids } of golden.prompts) {
        await runner.run(0, model.input(ids, 0, every(ids), LOGITS));
        const indices = golden.tensors.get(`${name}.router_topk_index`)!.data;
        const weights = golden.tensors.get(`${name}.router_topk_weight`)!.data;
        let layers = 0;
        for (const op of plan.ops) {
          if (op.kind !== "route" && op.kind !== "top_k") continue;
          const K = op.y.shape[1] as number;
          const last = <T>(all: ArrayLike<T>) => Array.from(all).slice(-K);
          const chosen = last(new Uint32Array(runner.read(op.experts, ids.length).buffer));
          const shares = last(new Float32Array(runner.read(op.y, ids.length).buffer));
          const at = op.layer! * K;
          assertEquals(chosen, Array.from(indices.subarray(at, at + K)), `${name}, layer ${op.layer}`);
          shares.forEach((share, s) => assert(Math.abs(share - weights[at + s]) < 1e-4, `${name}: ${share}`));
          layers++;
        }
        assertEquals(
          layers,
          indices.length /
            (plan.ops.find((op) => op.kind === "route" || op.kind === "top_k")!.y.shape[1] as number),
        );
      }
    }
  });
}

test("e2b computes the same bytes with and without reuse of the arena", async (device) => {
  for (const row of ["e2b", "e2b-mlx-4bit"]) {
    const { model, golden } = await open(row);
    const { input_ids: ids } = golden.prompts[1];
    for (const exact of [true, false]) {
      for (const fuse of [true, false]) {
        const found: Uint8Array[][] = [];
        for (const reuse of [true, false]) {
          const plan = model.plan({ variant: "prefill", exact, fuse, reuse });
          using runner = await Runner.create(device, model, plan);
          found.push(await runner.run(0, model.input(ids, 0, [3, ids.length - 1], LOGITS + 7)));
          runner.checkGuards();
        }
        found[0].forEach((bytes, i) =>
          assert(equal(bytes, found[1][i]), `${row} output ${i}, exact ${exact}, fuse ${fuse}`)
        );
      }
    }
  }
});

test("e2b gives the same logits for prompts cut into chunks of 1, 7, 16 and 512", async (device) => {
  for (const row of ["e2b", "e2b-mlx-4bit", "26b-a4b-mlx-4bit"]) {
    const { model, golden } = await open(row);
    const { input_ids: ids } = golden.prompts[1];
    const plans = (exact: boolean) => [
      model.plan({ variant: "prefill", exact }),
      model.plan({ variant: "decode", exact }),
    ];
    for (const exact of [true, false]) {
      const logits: Uint8Array[] = [];
      for (const size of [512, 16, 7, 1]) {
        using runner = await Runner.create(device, model, ...plans(exact));
        for (let from = 0; from < ids.length; from += size) {
          const chunk = ids.slice(from, from + size);
          const last = from + size >= ids.length;
          const input = model.input(chunk, from, last ? [chunk.length - 1] : [], LOGITS);
          // chunks are prefill rows whatever their number
          const rows = input.rows.map((row) => ({ ...row, rowClass: "prefill" as const }));
          const outputs = await runner.run(0, { ...input, rows, outputMask: last ? LOGITS : 0 });
          if (last) logits.push(outputs[0]);
        }
        runner.checkGuards();
      }
      logits.forEach((bytes, i) =>
        assert(equal(bytes, logits[0]), `${row}, exact ${exact}, chunk size ${i}`)
      );
    }
  }
});

test("e2b in exact mode gives the same logits by decode steps as by one prefill", async (device) => {
  const { model, golden } = await open("e2b");
  const { input_ids: ids } = golden.prompts[1];
  const prefill = model.plan({ variant: "prefill", exact: true });
  const decode = model.plan({ variant: "decode", exact: true });
  using whole = await Runner.create(device, model, prefill, decode);
  const [expected] = await whole.run(1, model.input(ids, 0, every(ids), LOGITS));
  const width = expected.length / ids.length;
  using steps = await Runner.create(device, model, prefill, decode);
  await steps.run(0, model.input(ids.slice(0, 100), 0, [], 0));
  for (let position = 100; position < ids.length; position++) {
    const [row] = await steps.run(1, model.input([ids[position]], position, [0], LOGITS));
    assert(equal(row, expected.subarray(position * width, (position + 1) * width)), `position ${position}`);
  }
});

test("e2b with half KV pages, and in fast mode, keeps its logits near the oracle's", async (device) => {
  const { model, golden } = await open("e2b-mlx-4bit");
  const { input_ids: ids } = golden.prompts[0];
  for (const [exact, tolerance] of [[true, 1e-2], [false, 8e-2]] as const) {
    const plan = model.plan({ variant: "decode", exact, kvFormat: "f16" });
    const input = model.input(ids, 0, every(ids), LOGITS);
    using runner = await Runner.create(device, model, plan);
    const [bytes] = await runner.run(0, input);
    const expected = new Oracle(plan, model.buffers(plan)).run(input)[OUTPUT.logits];
    const { error } = difference(new Float32Array(bytes.buffer), expected);
    assert(error <= tolerance, `exact ${exact}: logits are off by ${error}`);
  }
});
