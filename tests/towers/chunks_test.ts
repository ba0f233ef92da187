/** Prompts with media on the CPU device, and what towers refuse, share and keep. */
import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { checkPlaced, type MediaPlace } from "../../src/engine/placed.ts";
import { loadWith } from "../../src/engine/load.ts";
import { Disposed, InvalidArgument, MarkbaseError } from "../../src/errors.ts";
import { fixtureModel, maxDifference, TINY } from "../support/models.ts";
import { mediaFixture, mediaLogits, picturePatches, soundInput } from "../support/multimodal.ts";
import type { Load } from "./goldens.ts";
import { openFixture, testPlaced } from "./placed.ts";

const load: Load = (folder, internals) =>
  loadWith(folder, { device: "cpu", precision: "exact", kvCache: "f32", contextLength: 1280 }, internals);

testPlaced("the CPU", load);

Deno.test("a tower gives the same bit for bit whatever layers run together", async () => {
  const all: Float32Array[][] = [];
  for (const towerLayerRows of [undefined, 1, 1025]) {
    const { model, fixture } = await openFixture("e2b-mm-clipped", load, { towerLayerRows });
    await using _ = model;
    const { towers } = model.engine;
    const image = await picturePatches(fixture, model, fixture.source.facts.images[0].file);
    const { tower, soft } = await towers.imageResults(image);
    all.push([tower.values, soft.values, (await towers.embedAudio(soundInput(fixture, model, 0))).values]);
  }
  for (const values of all) assertEquals(values, all[0]);
});

Deno.test("media that do not fit their places, or ask for logits inside a large picture, are refused", async () => {
  const { model, prompt, media } = await openFixture("31b-mm", load);
  await using _ = model;
  const { config } = model;
  const refused = (words: string, list: MediaPlace[], length = prompt.input_ids.length) => {
    const error = assertThrows(() => checkPlaced(list, length, config), InvalidArgument);
    assert(error.message.includes(words), error.message);
  };
  checkPlaced(media, prompt.input_ids.length, config);
  refused("must follow each other", [media[1], media[0]]);
  refused("must follow each other", [{ ...media[0], start: prompt.input_ids.length }]);
  refused("1120 at most", [{ ...media[0], tokens: 1121 }], 5000);
  const few = await openFixture("31b-mm", load, { chunkRows: 16 });
  await using _few = few.model;
  const { start, tokens } = media[1];
  const inside = prompt.input_ids.length - start;
  const error = await assertRejects(
    () => mediaLogits(few.model, prompt.input_ids, few.media, inside),
    InvalidArgument,
  );
  assertEquals(
    error.message.includes(`Logits of ${tokens} positions inside one picture`),
    true,
    error.message,
  );
  await mediaLogits(few.model, prompt.input_ids, few.media, inside - tokens);
});

Deno.test("towers refuse what does not fit the model, and models without them say so", async () => {
  const { model, fixture } = await openFixture("e2b-mm-clipped", load);
  const { towers } = model.engine;
  const image = await picturePatches(fixture, model, fixture.source.facts.images[0].file);
  const sound = soundInput(fixture, model, 0) as { logMel: Float32Array; valid: Uint8Array };
  const cases: [string, () => Promise<unknown>][] = [
    ["both must be multiples of 3", () => towers.embedImage({ ...image, columns: 36, rows: 16 })],
    ["pixel values", () => towers.embedImage({ ...image, pixels: image.pixels.subarray(1) })],
    ["positions along a side", () => towers.embedImage({ ...image, columns: 192, rows: 3 })],
    [
      "must occur once",
      () => towers.embedImage({ ...image, positions: image.positions.map((p, i) => i < 2 ? 1 : p) }),
    ],
    [
      "must occur once",
      () => towers.embedImage({ ...image, positions: image.positions.map((p, i) => i ? p : -1) }),
    ],
    ["there must be 1 to", () => towers.embedImage({ ...image, columns: 0, rows: 0 })],
    ["frames of 128", () => towers.embedAudio({ ...sound, logMel: sound.logMel.subarray(1) })],
    ["frames of 128", () => towers.embedAudio({ logMel: new Float32Array(0), valid: new Uint8Array(0) })],
    ["hears log-mel features", () => towers.embedAudio({ samples: new Float32Array(640), frames: 1 })],
  ];
  for (const [words, call] of cases) {
    const error = await assertRejects(call, InvalidArgument);
    assert(error.message.includes(words), error.message);
  }
  const silence = await towers.embedAudio({ logMel: new Float32Array(5 * 128), valid: new Uint8Array(5) });
  assertEquals(silence.tokens, 0);
  await model[Symbol.asyncDispose]();
  await assertRejects(() => towers.embedImage(image), Disposed);

  await using deaf = await loadWith(fixtureModel("31b-mm")!, { device: "cpu" }, {});
  assertEquals(deaf.engine.towers.parts, { vision: true, audio: false });
  const error = await assertRejects(() => deaf.engine.towers.embedAudio(sound), MarkbaseError);
  assertEquals(error.code, "no_audio");
  await using blind = await loadWith(fixtureModel("e2b")!, { device: "cpu" }, {});
  assertEquals(
    (await assertRejects(() => blind.engine.towers.embedImage(image), MarkbaseError)).code,
    "no_vision",
  );
});

Deno.test("a run of a tower ends with its signal, and with its model; larger pictures take a larger plan", async () => {
  const fixture = await mediaFixture("e2b-mm-clipped");
  assert(fixture);
  const model = await loadWith(fixture.folder, { device: "cpu", contextLength: 512 }, {});
  const { towers } = model.engine;
  const image = await picturePatches(fixture, model, fixture.source.facts.images[0].file);
  const aborted = AbortSignal.abort(new Error("no longer wanted"));
  assertEquals(
    (await assertRejects(() => towers.embedImage(image, { signal: aborted }), Error)).message,
    "no longer wanted",
  );
  const small = cropped(image, 6, 3);
  const one = await towers.embedImage(small);
  const before = towers.activationBytes;
  await towers.embedImage(image);
  assert(towers.activationBytes > before, "the plan has grown");
  assert(
    maxDifference((await towers.embedImage(small)).values, one.values) === 0,
    "the plan's size changes nothing",
  );
  const pending = towers.embedImage(image);
  model[Symbol.dispose]();
  await assertRejects(() => pending, Disposed);
  await model[Symbol.asyncDispose]();
});

/** The upper left of a picture. */
function cropped(image: Awaited<ReturnType<typeof picturePatches>>, columns: number, rows: number) {
  const width = image.pixels.length / (image.columns * image.rows);
  const pixels = new Uint8Array(columns * rows * width);
  const positions = new Int32Array(columns * rows * 2);
  for (let y = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++) {
      const [to, from] = [y * columns + x, y * image.columns + x];
      pixels.set(image.pixels.subarray(from * width, (from + 1) * width), to * width);
      positions.set([x, y], 2 * to);
    }
  }
  return { pixels, positions, columns, rows };
}

Deno.test("the shipped model keeps the memory of its towers in its report", async () => {
  await using model = await loadWith(TINY, { device: "cpu" }, {});
  const before = model.memory().activations;
  await model.engine.towers.embedImage({
    pixels: new Uint8Array(9 * 768),
    positions: Int32Array.from([0, 1, 2].flatMap((y) => [0, 1, 2].flatMap((x) => [x, y]))),
    columns: 3,
    rows: 3,
  });
  assert(model.memory().activations > before);
});
