/** Chunks, prefixes and batches with media in the prompt. */
import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { checkPlaced, type PlacedMedia, splitBlock, timelineKeys } from "../../src/engine/placed.ts";
import { loadWith } from "../../src/engine/load.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import { Disposed, InvalidArgument, MarkbaseError } from "../../src/errors.ts";
import { maxDifference, TINY } from "../support/models.ts";
import { fixtureModel } from "../support/models.ts";
import {
  type MediaFixture,
  mediaFixture,
  mediaGreedy,
  mediaLogits,
  type MediaPrompt,
  picturePatches,
  placedMedia,
  soundInput,
} from "../support/multimodal.ts";

/** One row with blocks in sliding layers, one with whole blocks in all, one with none. */
const ROWS = ["31b-mm", "12b", "e2b-mm-clipped"].filter((row) => fixtureModel(row) !== null);

interface Opened {
  model: LoadedModel;
  fixture: MediaFixture;
  prompt: MediaPrompt;
  media: PlacedMedia[];
}

async function open(row: string, internals: Parameters<typeof loadWith>[2] = {}): Promise<Opened> {
  const fixture = await mediaFixture(row);
  assert(fixture);
  const options = { device: "cpu", precision: "exact", kvCache: "f32", contextLength: 512 } as const;
  const model = await loadWith(fixture.folder, options, internals);
  const prompt = fixture.prompts.find(({ name }) => name === "two_images")!;
  return { model, fixture, prompt, media: await placedMedia(fixture, model, prompt, new Map()) };
}

for (const row of ROWS) {
  Deno.test(`${row}: logits are the same bit for bit whatever the chunks`, async () => {
    const all: Float32Array[] = [];
    for (const chunkRows of [512, 7, 32, 61]) {
      const { model, prompt, media } = await open(row, { chunkRows });
      await using _ = model;
      all.push(await mediaLogits(model, prompt.input_ids, media));
    }
    for (const logits of all) assertEquals(logits, all[0]);
  });

  Deno.test(`${row}: a second picture never sees the mask of the first`, async () => {
    const { model, prompt, media } = await open(row);
    await using _ = model;
    const [first, second] = media;
    const { input_ids: ids } = prompt;
    // What comes before the second picture does not depend on it, nor on whether it is a block.
    const head = ids.slice(0, second.start);
    const before = await mediaLogits(model, head, [first]);
    const rows = ids.length - head.length;
    for (const variant of [second, { ...second, block: false }]) {
      const whole = await mediaLogits(model, ids, [first, variant], rows + 8);
      assertEquals(whole.subarray(0, before.length), before);
    }
    // The first picture's rows see neither the text between the two nor the second picture.
    const other = ids.map((id, i) => i >= first.start + first.soft.tokens ? (id + 1) % 200 : id);
    const place = first.start + first.soft.tokens - 1;
    const width = model.config.vocabularySize;
    const upTo = (prompt: readonly number[], media: PlacedMedia[]) =>
      mediaLogits(model, prompt, media, prompt.length - place);
    const [a, b] = [await upTo(ids, [first, second]), await upTo(other, [first])];
    assertEquals(a.subarray(0, width), b.subarray(0, width));
  });

  Deno.test(`${row}: a prompt resumes after a picture that it shares, never inside one, and goes on the same`, async () => {
    const { model, prompt, media } = await open(row);
    await using _ = model;
    const { input_ids: ids, greedy } = prompt;
    assertEquals(await mediaGreedy(model, ids, media, 8), greedy.slice(0, 8));
    const { prefixes } = model.engine.forward;
    const resume = (other: readonly number[], placed: readonly PlacedMedia[]) => {
      const { sequence } = prefixes.resume(timelineKeys(other, placed), model.engine.forward.cut(placed));
      const { length } = sequence;
      sequence.dispose();
      return length;
    };
    assertEquals(resume(ids, media), ids.length - 1);
    assertEquals(await mediaGreedy(model, ids, media, 8), greedy.slice(0, 8));
    // The same ids with another second picture share what comes before it, and not a token of the picture.
    const other = { ...media[1], key: "another" };
    assertEquals(resume(ids, [media[0], other]), media[1].start);
    // The same picture, cut in the middle by the end of what is known.
    const { start, soft } = media[1];
    const inside = start + Math.floor(soft.tokens / 2);
    const keys = timelineKeys(ids, media);
    const changed = keys.map((key, i) => i < inside ? key : `${key}!`);
    const cut = model.engine.forward.cut(media);
    const { sequence } = prefixes.resume(changed, cut);
    assertEquals(sequence.length, cut(inside));
    assertEquals(cut(inside), splitBlock(media, inside) && row !== "e2b-mm-clipped" ? start : inside);
    sequence.dispose();
    // Other content at the same place gives other tokens, whatever the cache holds.
    const values = media[0].soft.values.map((value) => -value);
    const placed = [{ ...media[0], key: "negative", soft: { ...media[0].soft, values } }, media[1]];
    const fresh = await open(row, { keptPrefixes: 0 });
    await using _fresh = fresh.model;
    assertEquals(await mediaGreedy(model, ids, placed, 6), await mediaGreedy(fresh.model, ids, placed, 6));
  });

  Deno.test(`${row}: prompts with media and without run together as they do alone`, async () => {
    const { model, fixture, prompt, media } = await open(row, { chunkRows: 24, keptPrefixes: 0 });
    await using _ = model;
    const image = fixture.prompts.find(({ name }) => name === "image")!;
    const placed = await placedMedia(fixture, model, image, new Map());
    const text = [2, 11, 54, 87, 120, 33, 71, 9, 140, 77];
    const runs: [readonly number[], PlacedMedia[]][] = [
      [prompt.input_ids, media],
      [text, []],
      [image.input_ids, placed],
      [text.map((id) => id + 1), []],
    ];
    const alone: number[][] = [];
    for (const [ids, list] of runs) alone.push(await mediaGreedy(model, ids, list, 12));
    const together = await Promise.all(runs.map(([ids, list]) => mediaGreedy(model, ids, list, 12)));
    assertEquals(together, alone);
    assertEquals(alone[0], prompt.greedy.slice(0, 12));
    assert(model.engine.forward.counts.mixed > 0, "prompts and decode rows shared forwards");
  });
}

Deno.test("a tower gives the same bit for bit whatever layers run together", async () => {
  const all: Float32Array[][] = [];
  for (const towerLayerRows of [undefined, 1, 1025]) {
    const { model, fixture } = await open("e2b-mm-clipped", { towerLayerRows });
    await using _ = model;
    const { towers } = model.engine;
    const image = await picturePatches(fixture, model, fixture.source.facts.images[0].file);
    const { tower, soft } = await towers.imageResults(image);
    all.push([tower.values, soft.values, (await towers.embedAudio(soundInput(fixture, model, 0))).values]);
  }
  for (const values of all) assertEquals(values, all[0]);
});

Deno.test("media that do not fit their places, or ask for logits inside a large picture, are refused", async () => {
  const { model, prompt, media } = await open("31b-mm");
  await using _ = model;
  const { config } = model;
  const refused = (words: string, list: PlacedMedia[]) => {
    const error = assertThrows(() => checkPlaced(list, prompt.input_ids.length, config), InvalidArgument);
    assert(error.message.includes(words), error.message);
  };
  checkPlaced(media, prompt.input_ids.length, config);
  refused("must follow each other", [media[1], media[0]]);
  refused("must follow each other", [{ ...media[0], start: prompt.input_ids.length }]);
  refused("each must have 48", [{ ...media[0], soft: { ...media[0].soft, tokens: 3 } }]);
  const many = { values: new Float32Array(1121 * config.hiddenSize), tokens: 1121 };
  assertThrows(
    () => checkPlaced([{ ...media[0], soft: many }], 5000, config),
    InvalidArgument,
    "1120 at most",
  );
});

Deno.test("towers refuse what does not fit the model, and models without them say so", async () => {
  const { model, fixture } = await open("e2b-mm-clipped");
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
