/** What a load reckons with for scratch, before plans are compiled, against what the CPU device then takes. */
import { assert } from "@std/assert";
import { expertProblem } from "../../src/conformance/cases/experts.ts";
import { linearProblem } from "../../src/conformance/cases/linear.ts";
import { Device } from "../../ffi/device.ts";
import { openCheckpoint } from "../../src/checkpoint/open.ts";
import { placeWeights } from "../../src/engine/place_weights.ts";
import { TextPlans } from "../../src/engine/text_plans.ts";
import { layOutWeights } from "../../src/engine/weights.ts";
import type { Problem } from "../../src/conformance/problem.ts";
import { pageBytes } from "../../src/schedule/groups.ts";
import { cpuScratch } from "../../src/schedule/scratch.ts";
import { firstWeightBuffer } from "../../src/schedule/text.ts";
import { lackingLevels, LEVELS } from "../conformance/levels.ts";
import { fixtureModel, gemma3Model, GOLDEN_MODELS, TINY } from "../support/models.ts";

const lacking = await lackingLevels();
const models = [...GOLDEN_MODELS.map(fixtureModel), gemma3Model(), TINY].filter((path) => path !== null);

/** Bytes of scratch that a load expects, and that the device takes for the plans of a model. */
async function measure(path: string, exact: boolean, threads: number) {
  const checkpoint = await openCheckpoint(path);
  const { config, files } = checkpoint, weights = checkpoint.weights();
  await using stack = new AsyncDisposableStack();
  const device = stack.use(await Device.open("cpu", { threads }));
  const layout = layOutWeights({ weights }, files, firstWeightBuffer(config), device.info().weightAlignment);
  const parts = { withState: false, takesMedia: false, sees: false };
  const plans = new TextPlans({ config, weights, layout, kvFormat: "f16", exact, ...parts });
  const room = { entries: 64, kvPages: plans.groups.map(() => 32) };
  const buffers = [
    stack.use(device.createBuffer(plans.arenaBytes)),
    ...plans.groups.map((group) => stack.use(device.createBuffer(32 * pageBytes(group, "f16")))),
    ...await placeWeights(device, checkpoint, layout, stack, {}),
  ];
  for (const plan of [plans.prefill(room), plans.decode(room)]) {
    stack.use(await device.compile(plan, buffers));
  }
  const expected = plans.scratchBytes("cpu", device.info().threads);
  return { expected, taken: device.memory().scratch, config };
}

Deno.test("scratch that a load reckons with is at least what the compiled plans take, and little more where a model has many tokens", async () => {
  assert(models.length > 2);
  for (const path of models) {
    for (const exact of [false, true]) {
      for (const threads of [1, 9]) {
        const { expected, taken, config } = await measure(path, exact, threads);
        const what = `${path}, ${
          exact ? "exact" : "fast"
        }, ${threads} threads: ${taken} of ${expected} bytes`;
        assert(taken <= expected, what);
        // Of small models an op's activations are more than what it copies of them.
        const most = config.vocabularySize > 100_000 ? 1.1 : 3;
        assert(expected < most * taken + threads * 2 ** 20, what);
      }
    }
  }
});

Deno.test("tiles of rows of many columns and products of many experts' rows are reckoned with", async () => {
  const format = { kind: "gguf", type: "q6_k" } as const; // a scale for 16 columns, as many as there are
  const problems = [
    // As long as the rows of 31B's widest product.
    linearProblem({ rows: 2, k: 21_504, n: [32, 32], format, epilogue: "geglu" }, 5, false),
    expertProblem({ op: "expert_gate_up", rows: 2, E: 2, K: 2, k: 8_192, n: 32, format }, 5, false),
    expertProblem({ op: "expert_down", rows: 512, E: 8, K: 8, k: 768, n: 64, format }, 5, false),
  ];
  const taken = async ({ plan, buffers }: Problem, level: string, threads: number) => {
    using scope = new DisposableStack();
    const device = scope.use(await Device.open("cpu", { level, threads }));
    const bound = buffers.map(({ length }) => scope.use(device.createBuffer(length)));
    scope.use(await device.compile(plan, bound));
    return device.memory().scratch;
  };
  for (const level of LEVELS) {
    if (lacking.has(level)) continue;
    for (const problem of problems) {
      const ofThread = (await taken(problem, level, 9) - await taken(problem, level, 1)) / 8;
      const { thread } = cpuScratch(problem.plan);
      assert(ofThread > 2 ** 20 && ofThread <= thread, `${level}: ${ofThread} bytes of ${thread} a thread`);
    }
  }
});
