/** Whole fixture models run by the oracle: proves schedule and oracle without any native code. */
import { assert, assertEquals } from "@std/assert";
import { OUTPUT } from "../../src/schedule/text.ts";
import { fixtureModel, largest, maxDifference, MODELS, readGolden } from "../support/models.ts";
import { fixture } from "./model.ts";
import { Oracle } from "../../src/conformance/oracle/run.ts";

/** Suggested with the golden values for f32 arithmetic. */
const LOGITS = 2e-3;
const STATES = 1e-3;

for (const row of MODELS.small) {
  for (const fuse of [true, false]) {
    const schedule = fuse ? "fused" : "elementary";
    Deno.test(`oracle: ${row} by the ${schedule} schedule has the golden logits and hidden states`, async () => {
      const folder = fixtureModel(row);
      assert(folder);
      const golden = await readGolden(folder);
      const model = await fixture(folder);
      const plan = model.plan({ variant: "decode", exact: true, fuse, trace: true });
      const { config } = model.checkpoint;
      for (const { name, input_ids: ids } of golden.prompts) {
        const input = model.input(ids, 0, ids.map((_, i) => i), 0);
        const oracle = new Oracle(plan, model.buffers(plan));
        const outputs = oracle.run(input);
        const logits = outputs[OUTPUT.logits].slice(-8 * config.vocabularySize);
        const expected = golden.tensors.get(`${name}.logits_last8`)!.data;
        const difference = maxDifference(logits, expected);
        assert(difference <= LOGITS, `${name}: logits differ by ${difference}`);

        const states = golden.tensors.get(`${name}.hidden_states`)!.data;
        const H = config.hiddenSize;
        for (let i = 0; i <= config.layers.length; i++) {
          const state = oracle.value(plan.states[i], input).slice(-H);
          const expected = states.slice(i * H, (i + 1) * H);
          const far = maxDifference(state, expected) / largest(expected);
          assert(far <= STATES, `${name}: the state before layer ${i} differs by ${far} of its size`);
        }
      }
    });
  }

  Deno.test(`oracle: ${row} in prefill chunks and decode steps continues with the golden tokens`, async () => {
    const folder = fixtureModel(row);
    assert(folder);
    const golden = await readGolden(folder);
    const model = await fixture(folder);
    const prefill = model.plan({ variant: "prefill", exact: true });
    const decode = model.plan({ variant: "decode", exact: true });
    for (const { input_ids: prompt, greedy } of golden.prompts) {
      const buffers = model.buffers(prefill);
      const runs = new Oracle(prefill, buffers);
      const steps = new Oracle(decode, buffers, runs);
      const split = Math.floor(prompt.length / 3);
      runs.run(model.input(prompt.slice(0, split), 0, [], 0));
      const last = prompt.length - split - 1;
      let outputs = runs.run(model.input(prompt.slice(split), split, [last], 0));
      const tokens: number[] = [];
      for (let position = prompt.length; tokens.length < greedy.length; position++) {
        tokens.push(outputs[OUTPUT.ids][0]);
        outputs = steps.run(model.input(tokens.slice(-1), position, [0], 0));
      }
      assertEquals(tokens, greedy);
    }
  });
}
