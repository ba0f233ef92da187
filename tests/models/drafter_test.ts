/** Drafter networks beside their targets, against the golden values of a reference. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { CheckpointError, Disposed, InvalidArgument } from "../../src/errors.ts";
import { Drafter, type DrafterTarget } from "../../src/engine/drafter.ts";
import { loadWith } from "../../src/engine/load.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import { OUTPUT } from "../../src/schedule/text.ts";
import { Oracle } from "../../src/conformance/oracle/run.ts";
import { fixture } from "../oracle/model.ts";
import { EXACT } from "../support/calls.ts";
import {
  cosine,
  fixtureModel,
  largest,
  maxDifference,
  readGolden,
  readTensors,
  sharedTiny,
  TINY,
} from "../support/models.ts";

const PAIRS = [["e2b", "assistant-e2b"], ["31b", "assistant-31b"]] as const;
/** Page table entries that a step may bring. */
const PAGES = 64;

interface Round {
  name: string;
  context_ids: number[];
  first_token: number;
  position_id: number;
  draft_tokens: number[];
}

function targetOf(model: LoadedModel): DrafterTarget {
  const { forward, weights } = model.engine;
  return { config: model.config, weights, shared: forward.shared };
}

/** Runs `work` after the target has read `ids`. */
async function after<T>(
  model: LoadedModel,
  ids: readonly number[],
  work: (sequence: ReturnType<LoadedModel["engine"]["forward"]["sequence"]>) => Promise<T>,
): Promise<T> {
  const { forward } = model.engine;
  const sequence = forward.sequence();
  try {
    await forward.prefill(sequence, ids, { outputs: 0, mask: 0 }, () => {});
    return await work(sequence);
  } finally {
    sequence.dispose();
  }
}

for (const [targetName, name] of PAIRS) {
  const [targetFolder, folder] = [fixtureModel(targetName), fixtureModel(name)];
  const ignore = targetFolder === null || folder === null;

  for (const fuse of [true, false]) {
    const schedule = fuse ? "fused" : "elementary";
    Deno.test(
      `${name} drafts the golden tokens, logits and states by the ${schedule} schedule`,
      { ignore },
      async () => {
        const { rounds }: { rounds: Round[] } = JSON.parse(await Deno.readTextFile(`${folder}/golden.json`));
        const tensors = await readTensors(`${folder}/golden.safetensors`);
        await using model = await loadWith(targetFolder!, EXACT, {});
        await using drafter = await Drafter.open(folder!, targetOf(model), {
          pages: PAGES,
          fuse,
          trace: true,
          checkFinite: true,
        });
        const V = model.config.vocabularySize;
        assertEquals(rounds.length, 4);
        for (const round of rounds) {
          const golden = (what: string) => tensors.get(`${round.name}.${what}`)!.data;
          await after(model, round.context_ids, async ({ length, tables }) => {
            assertEquals(length, round.position_id);
            drafter.begin(new Float32Array(golden("target_last_hidden")));
            let token = round.first_token;
            const drafted: number[] = [];
            for (let step = 0; step < round.draft_tokens.length; step++) {
              const { ids, logits } = await drafter.step([{ token, length, tables }], { logits: true });
              const expected = golden("draft_logits").subarray(step * V, (step + 1) * V);
              assert(cosine(logits!, expected) >= 0.9999, `${round.name}, step ${step}`);
              const off = maxDifference(logits!, expected);
              assert(off <= 2e-3, `${round.name}, step ${step}: logits differ by ${off}`);
              const hidden = golden("draft_hidden");
              const B = model.config.hiddenSize;
              const state = hidden.subarray(step * B, (step + 1) * B);
              const far = maxDifference(drafter.state(), state) / largest(state);
              assert(far <= 1e-3, `${round.name}, step ${step}: the state differs by ${far} of its size`);
              if (step === 0) {
                const H = drafter.config.hiddenSize;
                drafter.states().forEach((found, i) => {
                  const expected = golden("step0_hidden_states").subarray(i * H, (i + 1) * H);
                  const far = maxDifference(found, expected) / largest(expected);
                  assert(far <= 1e-3, `${round.name}: state ${i} differs by ${far} of its size`);
                });
              }
              drafted.push(token = ids[0]);
            }
            assertEquals(drafted, round.draft_tokens, round.name);
          });
        }
      },
    );
  }

  Deno.test(`${name} reads the golden keys and values of its target`, { ignore }, async () => {
    const { rounds }: { rounds: Round[] } = JSON.parse(await Deno.readTextFile(`${folder}/golden.json`));
    const tensors = await readTensors(`${folder}/golden.safetensors`);
    await using model = await loadWith(targetFolder!, EXACT, {});
    const { forward } = model.engine;
    let compared = 0;
    for (const round of rounds) {
      await after(model, round.context_ids, async ({ length, tables }) => {
        for (const [g, group] of forward.groups.entries()) {
          const kind = group.window === null ? "full_attention" : "sliding_attention";
          for (const [plane, part] of ["k", "v"].entries()) {
            const golden = tensors.get(`${round.name}.shared_${kind}.${part}`);
            if (!golden) continue;
            const { kvHeads, headDim: d, layers } = group;
            assertEquals(golden.shape, [kvHeads, length, d]);
            for (const [p, page] of Array.from(tables[g].pages).entries()) {
              const stored = new Float32Array(2 * layers.length * kvHeads * 32 * d);
              await forward.readPage(g, page, new Uint8Array(stored.buffer));
              const start = (tables[g].first + p) * 32;
              for (let head = 0; head < kvHeads; head++) {
                const count = Math.min(32, length - start) * d;
                // the last owner of the kind is the last layer of its group
                const at = ((2 * (layers.length - 1) + plane) * kvHeads + head) * 32 * d;
                const from = (head * length + start) * d;
                const expected = golden.data.subarray(from, from + count);
                const off = maxDifference(stored.subarray(at, at + count), expected);
                assert(off <= 1e-3, `${round.name} ${kind}.${part}: ${off}`);
                compared += count;
              }
            }
          }
        }
      });
    }
    assert(compared > 0);
  });

  Deno.test(
    `${name} drafts the same for several sequences at once as for each alone`,
    { ignore },
    async () => {
      const { rounds }: { rounds: Round[] } = JSON.parse(await Deno.readTextFile(`${folder}/golden.json`));
      const tensors = await readTensors(`${folder}/golden.safetensors`);
      await using model = await loadWith(targetFolder!, EXACT, {});
      await using drafter = await Drafter.open(folder!, targetOf(model), { pages: PAGES, rows: 4 });
      const { forward } = model.engine;
      const sequences: ReturnType<typeof forward.sequence>[] = [];
      for (const { context_ids: ids } of rounds) {
        const sequence = forward.sequence();
        await forward.prefill(sequence, ids, { outputs: 0, mask: 0 }, () => {});
        sequences.push(sequence);
      }
      const begin = (round: Round, row: number) =>
        drafter.begin(new Float32Array(tensors.get(`${round.name}.target_last_hidden`)!.data), row);
      const rowOf = (round: Round, i: number) => ({
        token: round.first_token,
        length: sequences[i].length,
        tables: sequences[i].tables,
      });
      rounds.forEach(begin);
      const together = await drafter.step(rounds.map(rowOf), { logits: true });
      const states = rounds.map((_, row) => drafter.state(row));
      const V = model.config.vocabularySize;
      for (const [i, round] of rounds.entries()) {
        begin(round, 0);
        const alone = await drafter.step([rowOf(round, i)], { logits: true });
        assertEquals(
          maxDifference(alone.logits!, together.logits!.subarray(i * V, (i + 1) * V)),
          0,
          round.name,
        );
        assertEquals(maxDifference(drafter.state(), states[i]), 0, round.name);
      }
      for (const sequence of sequences) sequence.dispose();
    },
  );

  Deno.test(`${targetName} gives the state that ${name} starts from as an output`, { ignore }, async () => {
    const model = await fixture(targetFolder!);
    const golden = await readGolden(targetFolder!);
    for (const fuse of [true, false]) {
      const plan = model.plan({ variant: "prefill", exact: true, fuse, withState: true });
      for (const { name, input_ids: ids } of golden.prompts) {
        const outputs = new Oracle(plan, model.buffers(plan)).run(model.input(ids, 0, [ids.length - 1], 0));
        const expected = golden.tensors.get(`${name}.final_norm`)!.data;
        const far = maxDifference(outputs[OUTPUT.state], expected) / largest(expected);
        assert(far <= 1e-3, `${name}: ${far}`);
      }
    }
  });
}

Deno.test("a drafter of another model is refused with the sizes that differ", async () => {
  await using model = await loadWith(fixtureModel("e2b")!, EXACT, {});
  const options = { pages: PAGES };
  const wrong = fixtureModel("assistant-31b")!;
  const error = await assertRejects(() => Drafter.open(wrong, targetOf(model), options), CheckpointError);
  assertEquals(error.code, "drafter_mismatch");
  assert(error.message.includes("128") && error.message.includes("64"), error.message);
  const same = fixtureModel("e2b")!;
  const none = await assertRejects(() => Drafter.open(same, targetOf(model), options), CheckpointError);
  assert(none.message.includes("gemma4"), none.message);
});

Deno.test("a drafter alone is refused by load", async () => {
  await assertRejects(() => loadWith(fixtureModel("assistant-e2b")!, EXACT, {}), Error, "drafter");
});

Deno.test("a drafter refuses a state of the wrong size and calls after its end", async () => {
  await using model = await loadWith(fixtureModel("e2b")!, EXACT, {});
  const drafter = await Drafter.open(fixtureModel("assistant-e2b")!, targetOf(model), { pages: PAGES });
  let error: unknown;
  try {
    drafter.begin(new Float32Array(3));
  } catch (thrown) {
    error = thrown;
  }
  assert(error instanceof InvalidArgument && error.message.includes("64"));
  await drafter[Symbol.asyncDispose]();
  await assertRejects(() => drafter.step([]), Disposed);
});

const tinyDrafter = sharedTiny("drafter");
for (const name of ["text_story", "text_long"]) {
  Deno.test(`the drafter of the shipped model drafts the golden tokens after ${name}`, {
    ignore: tinyDrafter === null,
  }, async () => {
    await using model = await loadWith(TINY, EXACT, {});
    await using drafter = await Drafter.open(tinyDrafter!, targetOf(model), { pages: PAGES });
    const golden = `${sharedTiny("golden")}/drafter_${name}`;
    const round = JSON.parse(await Deno.readTextFile(`${golden}.json`));
    const tensors = await readTensors(`${golden}.safetensors`);
    const prompt = new URL(`../fixtures/tiny/${name}.json`, import.meta.url);
    const { input_ids: ids } = JSON.parse(await Deno.readTextFile(prompt));
    const B = model.config.hiddenSize;
    await after(model, ids, async ({ length, tables }) => {
      assertEquals(length, round.position_id);
      drafter.begin(tensors.get("step0_inputs")!.data.slice(B) as Float32Array<ArrayBuffer>);
      let token = round.first_token;
      const drafted: number[] = [];
      for (let step = 0; step < round.draft_tokens.length; step++) {
        const { ids, logits } = await drafter.step([{ token, length, tables }], { logits: true });
        const expected = tensors.get(`step${step}_logits`)!.data;
        assert(cosine(logits!, expected) >= 0.9999, `step ${step}`);
        assert(maxDifference(logits!, expected) <= 2e-2, `step ${step}: ${maxDifference(logits!, expected)}`);
        const state = tensors.get(`step${step}_hidden`)!.data;
        assert(maxDifference(drafter.state(), state) <= 1e-3 * largest(state), `step ${step}`);
        drafted.push(token = ids[0]);
      }
      assertEquals(drafted, round.draft_tokens);
    });
  });
}
