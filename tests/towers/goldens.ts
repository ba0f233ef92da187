/** Tests of towers, merged prompts and their continuations against the reference, for one device. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { InvalidArgument } from "../../src/errors.ts";
import type { loadWith } from "../../src/engine/load.ts";
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

/** Switches of a model that tests set. */
export type Internals = Parameters<typeof loadWith>[2];

/** Loads a fixture in exact mode. */
export type Load = (folder: string, internals: Internals) => Promise<LoadedModel>;

/** Every class of model, clipped and not, bf16 and 4 bits. */
export const ROWS = ["e2b-mm-clipped", "e2b-mm-unclipped", "e2b-mm-clipped-mlx-4bit", "31b-mm", "12b"];

/** Registers the tests of all fixtures. `device` stands in their names; absent fixtures are named and skipped. */
export function testGoldens(device: string, load: Load, ways: readonly Internals[]): void {
  const absent = ROWS.filter((row) => fixtureModel(row) === null);
  if (absent.length > 0) console.log(`tests of absent fixtures are skipped: ${absent.join(", ")}`);
  for (const row of ROWS) {
    const ignore = fixtureModel(row) === null;
    Deno.test({
      name:
        `${row} on ${device}: pictures and sounds become the soft tokens of the reference, before and after the projector`,
      ignore,
      async fn() {
        const fixture = (await mediaFixture(row))!;
        await using model = await load(fixture.folder, {});
        await checkSoftTokens(fixture, model);
      },
    });
    Deno.test({
      name:
        `${row} on ${device}: silence, clicks, loud noise, flat pictures and lines give finite soft tokens`,
      ignore,
      async fn() {
        const { folder } = (await mediaFixture(row))!;
        await using model = await load(folder, {});
        await checkExtremes(model);
      },
    });
    for (const internals of ways) {
      const how = internals.chunkRows ? ` in chunks of ${internals.chunkRows}` : "";
      const schedule = "fuse" in internals ? ", elementary schedule" : "";
      Deno.test({
        name:
          `${row} on ${device}: prompts with media give the golden logits and continuation${how}${schedule}`,
        ignore,
        async fn() {
          const fixture = (await mediaFixture(row))!;
          await using model = await load(fixture.folder, internals);
          await checkPrompts(fixture, model);
        },
      });
    }
  }
}

async function checkSoftTokens(fixture: MediaFixture, model: LoadedModel): Promise<void> {
  const { towers } = model.engine;
  const { golden, source } = fixture;
  // What a quantised copy does not list anew is the original's, whose towers it shares; its projectors are its own.
  const isCopy = fixture.folder !== source.folder;
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
}

/** What real files seldom hold, of the least sizes and of the largest values. */
async function checkExtremes(model: LoadedModel): Promise<void> {
  const { hiddenSize: H, audio, vision } = model.config;
  const picture = (width: number, height: number, value: (i: number) => number) => ({
    data: Uint8Array.from({ length: width * height * 3 }, (_, i) => value(i)),
    width,
    height,
  });
  const pictures = [
    picture(50, 40, () => 0),
    picture(50, 40, () => 255),
    picture(40, 50, (i) => i % 2 * 255),
    picture(1, 1, () => 7),
    picture(1, 10_000, (i) => i % 256),
    picture(10_000, 1, (i) => i % 256),
  ];
  for (const image of pictures) {
    const what = `${image.width} × ${image.height}`;
    const patches = 70 * (vision!.kind === "tower" ? vision!.poolingKernelSize : 1); // along a line
    if (image.data.length === 30_000 && patches > vision!.positionRows) {
      await assertRejects(
        () => model.embedImage(image, { imageTokens: 70 }),
        InvalidArgument,
        "positions along a side",
      );
      continue;
    }
    const soft = await model.embedImage(image, { imageTokens: 70 });
    assert(soft.length > 0 && soft.length % H === 0 && soft.length <= 70 * H, what);
    assert(soft.every(Number.isFinite) && soft.some((value) => value !== 0), what);
  }
  if (audio === null) return;
  for (const samples of [800, 16_000]) {
    for (const loud of [0, 1, 1000, 1e29]) {
      const noise = Float32Array.from({ length: samples }, (_, i) => loud * Math.sin(i * i));
      const click = new Float32Array(samples);
      click[samples >> 1] = loud;
      for (const data of [noise, click]) {
        const soft = await model.embedAudio({ data, sampleRate: 16_000 });
        assert(soft.length > 0 && soft.length % H === 0, `${samples} samples of ${loud}`);
        assert(soft.every(Number.isFinite), `${samples} samples of ${loud}`);
      }
    }
  }
}

async function checkPrompts(fixture: MediaFixture, model: LoadedModel): Promise<void> {
  const embedded = new Map<string, SoftTokens>();
  for (const prompt of fixture.prompts) {
    const { name, input_ids: ids } = prompt;
    const media = await placedMedia(fixture, model, prompt, embedded);
    const logits = await mediaLogits(model, ids, media);
    const expected = fixture.golden.tensors.get(`${name}.logits_last8`)!.data;
    assert(cosine(logits, expected) >= 0.9999, `${name}: cosine ${cosine(logits, expected)}`);
    assert(maxDifference(logits, expected) <= 2e-3, `${name}: ${maxDifference(logits, expected)}`);
    assertEquals(await mediaGreedy(model, ids, media, prompt.greedy.length), prompt.greedy, name);
  }
  assert(fixture.prompts.length > 1);
}

function near(
  found: SoftTokens,
  expected: { data: Float32Array; shape: number[] } | undefined,
  what: string,
): number {
  if (expected === undefined) return 0;
  assertEquals(found.tokens, expected.shape[0], what);
  assert(cosine(found.values, expected.data) >= 0.9999, `${what}: ${cosine(found.values, expected.data)}`);
  const difference = maxDifference(found.values, expected.data);
  assert(difference <= 1e-3, `${what}: difference ${difference}`);
  return 1;
}
