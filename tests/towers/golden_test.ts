/** Towers, merged prompts and masks against the reference on the CPU device. */
import { assert } from "@std/assert";
import { loadWith } from "../../src/engine/load.ts";
import { fixtureModel, maxDifference } from "../support/models.ts";
import { mediaFixture, mediaLogits, placedMedia } from "../support/multimodal.ts";
import { type Load, testGoldens } from "./goldens.ts";

const load: Load = (folder, internals) => {
  const options = { device: "cpu", precision: "exact", kvCache: "f32", contextLength: 512 } as const;
  return loadWith(folder, options, { checkFinite: true, ...internals });
};

testGoldens("the CPU", load, [{}, { chunkRows: 16, fuse: false }, { chunkRows: 33 }]);

Deno.test({
  name:
    "the masks matter: a picture taken for causal text gives other logits where the model asks for blocks",
  ignore: fixtureModel("31b-mm") === null,
  async fn() {
    const fixture = (await mediaFixture("31b-mm"))!;
    await using model = await load(fixture.folder, {});
    const prompt = fixture.prompts.find(({ name }) => name === "image")!;
    const media = await placedMedia(fixture, model, prompt, new Map());
    const causal = media.map((each) => ({ ...each, block: false }));
    const right = await mediaLogits(model, prompt.input_ids, media);
    const wrong = await mediaLogits(model, prompt.input_ids, causal);
    assert(maxDifference(right, wrong) > 0.1, `${maxDifference(right, wrong)}`);
  },
});
