/** Tests of chunks, prefixes, batches and masks with media in the prompt, for one device. */
import { assert, assertEquals } from "@std/assert";
import type { LoadedModel } from "../../src/engine/model.ts";
import { type EmbeddedMedia, splitBlock, timelineKeys } from "../../src/engine/placed.ts";
import { LOGITS_OUTPUT } from "../../src/engine/results.ts";
import { OUTPUT } from "../../src/schedule/text.ts";
import { fixtureModel, maxDifference } from "../support/models.ts";
import {
  atHand,
  type MediaFixture,
  mediaFixture,
  mediaGreedy,
  mediaLogits,
  type MediaPrompt,
  placedMedia,
} from "../support/multimodal.ts";
import type { Internals, Load } from "./goldens.ts";

/** One row with blocks in sliding layers, one with whole blocks in all, one with none. */
const ROWS = ["31b-mm", "12b", "e2b-mm-clipped"];

/** A fixture with its prompt of two pictures. */
export interface Opened {
  model: LoadedModel;
  fixture: MediaFixture;
  prompt: MediaPrompt;
  media: EmbeddedMedia[];
}

/** Opens a fixture. */
export async function openFixture(row: string, load: Load, internals: Internals = {}): Promise<Opened> {
  const fixture = await mediaFixture(row);
  assert(fixture);
  const model = await load(fixture.folder, internals);
  const prompt = fixture.prompts.find(({ name }) => name === "two_images")!;
  return { model, fixture, prompt, media: await placedMedia(fixture, model, prompt, new Map()) };
}

/** Registers the tests of all fixtures. `device` stands in their names; absent fixtures are skipped. */
export function testPlaced(device: string, load: Load): void {
  for (const row of ROWS) {
    const open = (internals: Internals = {}) => openFixture(row, load, internals);
    const test = (name: string, fn: () => Promise<void>) =>
      Deno.test({ name: `${row} on ${device}: ${name}`, ignore: fixtureModel(row) === null, fn });
    test("logits are the same bit for bit whatever the chunks", async () => {
      const all: Float32Array[] = [];
      for (const chunkRows of [512, 7, 32, 61]) {
        const { model, prompt, media } = await open({ chunkRows });
        await using _ = model;
        all.push(await mediaLogits(model, prompt.input_ids, media));
      }
      for (const logits of all) assertEquals(logits, all[0]);
    });

    test("a second picture never sees the mask of the first", async () => {
      const { model, prompt, media } = await open();
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
      const other = ids.map((id, i) => i >= first.start + first.tokens ? (id + 1) % 200 : id);
      const place = first.start + first.tokens - 1;
      const width = model.config.vocabularySize;
      const upTo = (prompt: readonly number[], media: EmbeddedMedia[]) =>
        mediaLogits(model, prompt, media, prompt.length - place);
      const [a, b] = [await upTo(ids, [first, second]), await upTo(other, [first])];
      assertEquals(a.subarray(0, width), b.subarray(0, width));
    });

    test("a prompt resumes after a picture that it shares, never inside one, and goes on the same", async () => {
      const { model, prompt, media } = await open();
      await using _ = model;
      const { input_ids: ids, greedy } = prompt;
      assertEquals(await mediaGreedy(model, ids, media, 8), greedy.slice(0, 8));
      const { prefixes } = model.engine.forward;
      const resume = (other: readonly number[], placed: readonly EmbeddedMedia[]) => {
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
      const { start, tokens } = media[1];
      const inside = start + Math.floor(tokens / 2);
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
      const fresh = await open({ keptPrefixes: 0 });
      await using _fresh = fresh.model;
      assertEquals(await mediaGreedy(model, ids, placed, 6), await mediaGreedy(fresh.model, ids, placed, 6));
    });

    test("a picture sees its own end exactly where the model asks for it, and nothing before it does", async () => {
      const { model, prompt, media: [first] } = await open();
      await using _ = model;
      const end = first.start + first.tokens;
      const ids = prompt.input_ids.slice(0, end);
      const width = model.config.vocabularySize;
      const rowsOf = async (placed: EmbeddedMedia) => await mediaLogits(model, ids, [placed], end);
      const { values } = first.soft;
      const changed = values.map((value, i) => i < values.length - model.config.hiddenSize ? value : -value);
      const other = { ...first, key: "another end", soft: { ...first.soft, values: changed } };
      const [a, b] = [await rowsOf(first), await rowsOf(other)];
      const same = (from: number, to: number) =>
        maxDifference(a.subarray(from * width, to * width), b.subarray(from * width, to * width)) === 0;
      assert(same(0, first.start), "the text before the picture");
      assertEquals(same(end - 2, end - 1), row === "e2b-mm-clipped", "the picture's last row but one");
      assertEquals(same(first.start, first.start + 1), row === "e2b-mm-clipped", "the picture's first row");
    });

    if (row !== "31b-mm") {
      test("a sound is causal: its end changes nothing before it", async () => {
        const { model, fixture } = await open();
        await using _ = model;
        const prompt = fixture.prompts.find(({ name }) => name === "audio")!;
        const [sound] = await placedMedia(fixture, model, prompt, new Map());
        const ids = prompt.input_ids.slice(0, sound.start + sound.tokens);
        const values = sound.soft.values.slice();
        const { hiddenSize: H, vocabularySize: V } = model.config;
        values.subarray(-H).forEach((value, i, end) => end[i] = -value);
        const other = { ...sound, key: "another end", soft: { ...sound.soft, values } };
        const a = await mediaLogits(model, ids, [sound], ids.length);
        const b = await mediaLogits(model, ids, [other], ids.length);
        assertEquals(maxDifference(a.subarray(0, -V), b.subarray(0, -V)), 0);
        assert(maxDifference(a.subarray(-V), b.subarray(-V)) > 1e-3);
      });
    }

    test("after 900 tokens of text, one picture and then another give the logits of a fresh sequence", async () => {
      const { model, media: [first, second] } = await open({ chunkRows: 128 });
      await using _ = model;
      const text = (count: number, seed: number) =>
        Array.from({ length: count }, (_, i) => 3 + (i * 37 + seed * 11) % 190);
      const a = { ...first, start: 900 };
      const b = { ...second, start: 900 + first.tokens + 7 };
      const ids = [...text(900, 1), ...Array(first.tokens).fill(0), ...text(7, 2)];
      ids.push(...Array(second.tokens).fill(0), ...text(5, 3));
      const sequence = model.engine.forward.sequence();
      const parts: Float32Array[] = [];
      // Each part as a turn of its own.
      for (const end of [900, b.start - 7, b.start, ids.length]) {
        const options = { outputs: end === ids.length ? 8 : 1, mask: LOGITS_OUTPUT, media: atHand([a, b]) };
        await model.engine.forward.prefill(sequence, ids.slice(sequence.length, end), options, (results) => {
          if (end === ids.length) parts.push(results.all(OUTPUT.logits).slice());
        });
      }
      sequence.dispose();
      const session = Float32Array.from(parts.flatMap((part) => [...part]));
      assert(session.every(Number.isFinite));
      assertEquals(maxDifference(session, await mediaLogits(model, ids, [a, b])), 0);
    });

    test("prompts with media and without run together as they do alone", async () => {
      const { model, fixture, prompt, media } = await open({ chunkRows: 24, keptPrefixes: 0 });
      await using _ = model;
      const image = fixture.prompts.find(({ name }) => name === "image")!;
      const placed = await placedMedia(fixture, model, image, new Map());
      const text = [2, 11, 54, 87, 120, 33, 71, 9, 140, 77];
      const runs: [readonly number[], EmbeddedMedia[]][] = [
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
}
