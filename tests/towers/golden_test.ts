/** Towers, merged prompts and masks against the reference: every class of model, clipped and not, bf16 and 4 bits. */
import { assert, assertEquals } from "@std/assert";
import { loadWith } from "../../src/engine/load.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import type { SoftTokens } from "../../src/media/types.ts";
import { cosine, fixtureModel, maxDifference } from "../support/models.ts";
import {
  type MediaFixture,
  mediaFixture,
  mediaGreedy,
  mediaLogits,
  picturePatches,
  placedMedia,
  soundInput,
} from "../support/multimodal.ts";

const ROWS = ["e2b-mm-clipped", "e2b-mm-unclipped", "e2b-mm-clipped-mlx-4bit", "31b-mm", "12b"];
const absent = ROWS.filter((row) => fixtureModel(row) === null);
if (absent.length > 0) console.log(`tests of absent fixtures are skipped: ${absent.join(", ")}`);

async function open(
  row: string,
  internals: Parameters<typeof loadWith>[2] = {},
): Promise<{ model: LoadedModel; fixture: MediaFixture }> {
  const fixture = await mediaFixture(row);
  assert(fixture);
  const options = { device: "cpu", precision: "exact", kvCache: "f32", contextLength: 512 } as const;
  return { model: await loadWith(fixture.folder, options, { checkFinite: true, ...internals }), fixture };
}

function near(
  found: SoftTokens,
  expected: { data: Float32Array; shape: number[] } | undefined,
  what: string,
) {
  if (expected === undefined) return 0;
  assertEquals(found.tokens, expected.shape[0], what);
  assert(cosine(found.values, expected.data) >= 0.9999, `${what}: ${cosine(found.values, expected.data)}`);
  const difference = maxDifference(found.values, expected.data);
  assert(difference <= 1e-3, `${what}: difference ${difference}`);
  return 1;
}

for (const row of ROWS) {
  const ignore = fixtureModel(row) === null;

  Deno.test({
    name:
      `${row}: pictures and sounds become the soft tokens of the reference, before and after the projector`,
    ignore,
    async fn() {
      const { model, fixture } = await open(row);
      await using _ = model;
      const { towers } = model.engine;
      const { golden, source } = fixture;
      // What a quantised copy does not list anew is the original's, whose towers it shares; its projectors are its own.
      const isCopy = golden !== source.golden && fixture.folder !== source.folder;
      const expected = (name: string) =>
        golden.tensors.get(name) ??
          (isCopy && name.endsWith("soft_tokens") ? undefined : source.golden.tensors.get(name));
      let compared = 0;
      for (const [i, { file }] of source.facts.images.entries()) {
        const { tower, soft } = await towers.imageResults(await picturePatches(fixture, model, file));
        compared += near(tower, expected(`image${i}.tower_output`), `tower of image ${i}`);
        compared += near(soft, expected(`image${i}.soft_tokens`), `soft tokens of image ${i}`);
      }
      for (const i of (source.facts.audio ?? []).keys()) {
        const { tower, soft } = await towers.audioResults(soundInput(fixture, model, i));
        compared += near(tower, expected(`audio${i}.tower_output`), `tower of sound ${i}`);
        compared += near(soft, expected(`audio${i}.soft_tokens`), `soft tokens of sound ${i}`);
      }
      assert(compared >= 3);
    },
  });

  for (const internals of [{}, { chunkRows: 16, fuse: false }, { chunkRows: 33 }]) {
    const how = internals.chunkRows ? ` in chunks of ${internals.chunkRows}` : "";
    const schedule = "fuse" in internals ? ", elementary schedule" : "";
    Deno.test({
      name: `${row}: prompts with media give the golden logits and continuation${how}${schedule}`,
      ignore,
      async fn() {
        const { model, fixture } = await open(row, internals);
        await using _ = model;
        const embedded = new Map<string, SoftTokens>();
        for (const prompt of fixture.prompts) {
          const { name, input_ids: ids } = prompt;
          const media = await placedMedia(fixture, model, prompt, embedded);
          const logits = await mediaLogits(model, ids, media);
          const expected = fixture.golden.tensors.get(`${name}.logits_last8`)!.data;
          assert(cosine(logits, expected) >= 0.9999, `${name}: cosine ${cosine(logits, expected)}`);
          assert(maxDifference(logits, expected) <= 2e-3, `${name}: ${maxDifference(logits, expected)}`);
          if (row.endsWith("mlx-4bit")) continue; // its prompts leave ties between tokens
          assertEquals(await mediaGreedy(model, ids, media, prompt.greedy.length), prompt.greedy, name);
        }
        assert(fixture.prompts.length > 1);
      },
    });
  }
}

Deno.test({
  name:
    "the masks matter: a picture taken for causal text gives other logits where the model asks for blocks",
  ignore: fixtureModel("31b-mm") === null,
  async fn() {
    const { model, fixture } = await open("31b-mm");
    await using _ = model;
    const prompt = fixture.prompts.find(({ name }) => name === "image")!;
    const media = await placedMedia(fixture, model, prompt, new Map());
    const causal = media.map((each) => ({ ...each, block: false }));
    const right = await mediaLogits(model, prompt.input_ids, media);
    const wrong = await mediaLogits(model, prompt.input_ids, causal);
    assert(maxDifference(right, wrong) > 0.1, `${maxDifference(right, wrong)}`);
  },
});
