/** Drafter networks beside their targets on software Metal, against the golden values of a reference. */
import { assert, assertEquals } from "@std/assert";
import { Drafter } from "../../src/engine/drafter.ts";
import { cosine, fixtureModel, largest, maxDifference, readTensors } from "../support/models.ts";
import { loadMetal } from "./load.ts";
import { SoftwareMetal } from "./metal.ts";

const supported = Deno.build.os === "linux";
const PAIRS = [["e2b", "assistant-e2b"], ["31b", "assistant-31b"]] as const;
/** Page table entries that a step may bring. */
const PAGES = 64;
const MOST_DISPATCHES = 60; // of a step of a four-layer drafter

interface Round {
  name: string;
  context_ids: number[];
  first_token: number;
  draft_tokens: number[];
}

for (const [targetName, name] of PAIRS) {
  const [targetFolder, folder] = [fixtureModel(targetName), fixtureModel(name)];
  for (const fuse of [true, false]) {
    const schedule = fuse ? "fused" : "elementary";
    Deno.test(
      `${name} on software Metal drafts the golden tokens, logits and states by the ${schedule} schedule, one command buffer a step`,
      { ignore: !supported || targetFolder === null || folder === null },
      async () => {
        const { rounds }: { rounds: Round[] } = JSON.parse(await Deno.readTextFile(`${folder}/golden.json`));
        const tensors = await readTensors(`${folder}/golden.safetensors`);
        await using model = await loadMetal(targetFolder!);
        const { forward, weights } = model.engine;
        const target = { config: model.config, weights, shared: forward.shared };
        await using drafter = await Drafter.open(folder!, target, { pages: PAGES, fuse });
        const metal = await SoftwareMetal.open();
        const [V, B] = [model.config.vocabularySize, model.config.hiddenSize];
        for (const round of rounds) {
          const golden = (what: string) => tensors.get(`${round.name}.${what}`)!.data;
          const sequence = forward.sequence();
          await forward.prefill(sequence, round.context_ids, { outputs: 0, mask: 0 }, () => {});
          const { length, tables } = sequence;
          drafter.begin(new Float32Array(golden("target_last_hidden")));
          let token = round.first_token;
          const drafted: number[] = [];
          for (let step = 0; step < round.draft_tokens.length; step++) {
            metal.reset();
            const { ids, logits } = await drafter.step([{ token, length, tables }], { logits: true });
            assertEquals([metal.count("command_buffers"), metal.count("waits")], [1, 1]);
            assert(!fuse || metal.count("dispatches") <= MOST_DISPATCHES, `${metal.count("dispatches")}`);
            const expected = golden("draft_logits").subarray(step * V, (step + 1) * V);
            assert(cosine(logits!, expected) >= 0.9999, `${round.name}, step ${step}`);
            const off = maxDifference(logits!, expected);
            assert(off <= 2e-3, `${round.name}, step ${step}: logits differ by ${off}`);
            const state = golden("draft_hidden").subarray(step * B, (step + 1) * B);
            const far = maxDifference(drafter.state(), state) / largest(state);
            assert(far <= 1e-3, `${round.name}, step ${step}: the state differs by ${far} of its size`);
            drafted.push(token = ids[0]);
          }
          assertEquals(drafted, round.draft_tokens, round.name);
          sequence.dispose();
        }
      },
    );
  }
}
