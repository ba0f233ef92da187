/** Towers and prompts with media on software Metal: a model of each kind, and the shipped one. */
import { assert, assertEquals } from "@std/assert";
import type { SoftTokens } from "../../src/media/types.ts";
import { cosine, fixtureModel, maxDifference, readTensors, sharedTiny, TINY } from "../support/models.ts";
import {
  mediaFixture,
  mediaGreedy,
  mediaLogits,
  picturePatches,
  placedMedia,
  soundInput,
} from "../support/multimodal.ts";
import { decodePicture } from "../../src/media/picture.ts";
import { cutPatches } from "../../src/media/patches.ts";
import { loadMetal } from "./load.ts";

const supported = Deno.build.os === "linux";

for (const row of ["e2b-mm-clipped", "31b-mm", "12b"]) {
  Deno.test({
    name: `${row} on software Metal: soft tokens, logits and continuation of the reference`,
    ignore: !supported || fixtureModel(row) === null,
    async fn() {
      const fixture = await mediaFixture(row);
      assert(fixture);
      await using model = await loadMetal(fixture.folder);
      const { towers } = model.engine;
      const { golden, facts } = fixture.source;
      const near = (found: SoftTokens, name: string) => {
        const expected = golden.tensors.get(name)!;
        assertEquals(found.tokens, expected.shape[0]);
        assert(cosine(found.values, expected.data) >= 0.9999, name);
        assert(
          maxDifference(found.values, expected.data) <= 1e-3,
          `${name}: ${maxDifference(found.values, expected.data)}`,
        );
      };
      const { tower, soft } = await towers.imageResults(
        await picturePatches(fixture, model, facts.images[0].file),
      );
      near(tower, "image0.tower_output");
      near(soft, "image0.soft_tokens");
      if (model.config.audio) {
        const sound = await towers.audioResults(soundInput(fixture, model, 0));
        if (model.config.audio.kind === "tower") near(sound.tower, "audio0.tower_output");
        near(sound.soft, "audio0.soft_tokens");
      }
      const embedded = new Map<string, SoftTokens>();
      for (const prompt of fixture.prompts.filter(({ media }) => media.every((name) => name !== "v"))) {
        const media = await placedMedia(fixture, model, prompt, embedded);
        const expected = fixture.golden.tensors.get(`${prompt.name}.logits_last8`)!.data;
        const logits = await mediaLogits(model, prompt.input_ids, media);
        assert(cosine(logits, expected) >= 0.9999, `${prompt.name}: cosine ${cosine(logits, expected)}`);
        assert(
          maxDifference(logits, expected) <= 2e-3,
          `${prompt.name}: ${maxDifference(logits, expected)}`,
        );
        assertEquals(await mediaGreedy(model, prompt.input_ids, media, 6), prompt.greedy.slice(0, 6));
      }
    },
  });
}

Deno.test({
  name: "the shipped model on software Metal sees and hears what the reference did",
  ignore: !supported || sharedTiny("golden") === null,
  async fn() {
    const folder = sharedTiny("golden")!;
    await using model = await loadMetal(TINY);
    const { patchSize, poolingKernelSize } = model.config.vision!;
    const picture = await decodePicture(await Deno.readFile(`${folder}/scene.png`));
    const { soft } = await model.engine.towers.imageResults(
      cutPatches(picture, 70, { patchSize, poolingKernelSize, merged: false }),
    );
    const seen = (await readTensors(`${folder}/image_scene.safetensors`)).get("vision_embed")!;
    assert(cosine(soft.values, seen.data) >= 0.9999, `${cosine(soft.values, seen.data)}`);

    const heard = await readTensors(`${folder}/audio_digits.safetensors`);
    const { data: logMel, shape: [frames] } = heard.get("mel")!;
    const tokens = heard.get("audio_tower")!.shape[0];
    // invalid frames are zeros
    const valid = Uint8Array.from({ length: frames }, (_, t) => logMel[128 * t] === 0 ? 0 : 1);
    const { soft: sound } = await model.engine.towers.audioResults({ logMel, valid });
    assertEquals(sound.tokens, tokens);
    const expected = heard.get("audio_embed")!.data.subarray(0, sound.values.length);
    assert(cosine(sound.values, expected) >= 0.9999, `${cosine(sound.values, expected)}`);
  },
});
