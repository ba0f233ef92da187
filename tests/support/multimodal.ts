/** Fixtures with pictures and sound: their media as the reference prepared it, at its places in the golden prompts. */
import { type EmbeddedMedia, type PlacedMedia, timelineKeys } from "../../src/engine/placed.ts";
import type { Timeline } from "../../src/engine/generation.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import { LOGITS_OUTPUT } from "../../src/engine/results.ts";
import { cutPatches } from "../../src/media/patches.ts";
import { decodePicture } from "../../src/media/picture.ts";
import type { AudioFeatures, AudioFrames, ImagePatches, SoftTokens } from "../../src/media/types.ts";
import { OUTPUT } from "../../src/schedule/text.ts";
import { fixtureModel, type Golden, readGolden } from "./models.ts";

/** What `golden.json` says of a fixture's media. */
interface MediaFacts {
  images: { file: string; resized_file?: string }[];
  video?: { frames: string[]; sampled_indices: number[] };
  audio?: { valid_frames: number }[];
}

/** A golden prompt with its media's places. */
export interface MediaPrompt {
  name: string;
  input_ids: number[];
  /** `i0`: image 0; `a0`: audio 0; `v`: the sampled frames of the video */ media: string[];
  /** 0 text, 1 image, 2 video, 3 audio */ mm_token_type_ids: number[];
  greedy: number[];
}

/** A fixture and the one that its media came from, which is itself for most. */
export interface MediaFixture {
  folder: string;
  golden: Golden;
  prompts: MediaPrompt[];
  source: { folder: string; golden: Golden; facts: MediaFacts };
}

/** Opens a fixture; null if absent. */
export async function mediaFixture(row: string): Promise<MediaFixture | null> {
  const folder = fixtureModel(row), from = fixtureModel(row.replace(/-mlx-4bit$/, ""));
  if (folder === null || from === null) return null;
  const read = async (path: string) => JSON.parse(await Deno.readTextFile(`${path}/golden.json`));
  const facts = await read(from);
  const byName = new Map((facts.prompts as MediaPrompt[]).map((prompt) => [prompt.name, prompt]));
  const prompts = ((await read(folder)).prompts as MediaPrompt[])
    .filter(({ media }) => media?.length > 0)
    .map((prompt) => ({ ...prompt, mm_token_type_ids: byName.get(prompt.name)!.mm_token_type_ids }));
  return {
    folder,
    golden: await readGolden(folder),
    prompts,
    source: { folder: from, golden: await readGolden(from), facts },
  };
}

/** A picture of a fixture as patches; the stored resized one where there is one. */
export async function picturePatches(
  { source }: MediaFixture,
  model: LoadedModel,
  file: string,
): Promise<ImagePatches> {
  const { patchSize, poolingKernelSize, kind } = model.config.vision!;
  const resized = source.facts.images.find((image) => image.file === file)?.resized_file;
  const picture = await decodePicture(await Deno.readFile(`${source.folder}/${resized ?? file}`));
  return await cutPatches(picture, 70, { patchSize, poolingKernelSize, merged: kind === "patches" });
}

/** A sound of a fixture as the reference's features or frames. */
export function soundInput(
  { source }: MediaFixture,
  model: LoadedModel,
  index: number,
): AudioFeatures | AudioFrames {
  const { data, shape: [frames] } = source.golden.tensors.get(`audio${index}.input_features`)!;
  if (model.config.audio!.kind === "frames") return { samples: data, frames };
  return { logMel: data, valid: new Uint8Array(frames).fill(1, 0, source.facts.audio![index].valid_frames) };
}

/** The media of a prompt at its places. `embedded` keeps soft tokens from one prompt to the next. */
export async function placedMedia(
  fixture: MediaFixture,
  model: LoadedModel,
  { media, mm_token_type_ids: kinds }: MediaPrompt,
  embedded: Map<string, SoftTokens>,
): Promise<EmbeddedMedia[]> {
  const { towers } = model.engine;
  const { facts } = fixture.source;
  const soft = async (key: string, embed: () => Promise<SoftTokens>) => {
    let tokens = embedded.get(key);
    if (tokens === undefined) embedded.set(key, tokens = await embed());
    return tokens;
  };
  const picture = (file: string) =>
    soft(file, async () => await towers.embedImage(await picturePatches(fixture, model, file)));
  const placed: EmbeddedMedia[] = [];
  let at = 0;
  const place = (kind: number, key: string, tokens: SoftTokens) => {
    const start = kinds.indexOf(kind, at);
    placed.push({ start, tokens: tokens.tokens, soft: tokens, key, block: kind !== 3 });
    at = start + tokens.tokens;
  };
  for (const name of media) {
    const index = Number(name.slice(1));
    if (name === "v") {
      for (const frame of facts.video!.sampled_indices) {
        const file = facts.video!.frames[frame];
        place(2, file, await picture(file));
      }
    } else if (name.startsWith("i")) {
      const { file } = facts.images[index];
      place(1, file, await picture(file));
    } else {
      place(3, name, await soft(name, () => towers.embedAudio(soundInput(fixture, model, index))));
    }
  }
  return placed;
}

/** Media whose soft tokens need no tower. */
export function atHand(media: readonly EmbeddedMedia[]): PlacedMedia[] {
  return media.map(({ soft, ...place }) => ({ ...place, embed: () => Promise.resolve(soft) }));
}

/** f32 [last · V] logits of the last positions of a prompt with media. */
export async function mediaLogits(
  model: LoadedModel,
  ids: readonly number[],
  media: readonly EmbeddedMedia[],
  last: number = 8,
): Promise<Float32Array> {
  const { forward } = model.engine;
  const sequence = forward.sequence();
  const parts: Float32Array[] = [];
  try {
    await forward.prefill(
      sequence,
      ids,
      { outputs: last, mask: LOGITS_OUTPUT, media: atHand(media) },
      (results) => parts.push(results.all(OUTPUT.logits).slice()),
    );
  } finally {
    sequence.dispose();
  }
  return Float32Array.from(parts.flatMap((part) => [...part]));
}

/** A timeline that begins with a prompt with media. */
function mediaTimeline(
  model: LoadedModel,
  ids: readonly number[],
  media: readonly EmbeddedMedia[],
): Timeline {
  const sequence = model.engine.forward.sequence();
  return { ids: [...ids], keys: timelineKeys(ids, media), media: atHand(media), sequence, drawn: false };
}

/** The greedy continuation of a prompt with media, end tokens not heeded. */
export async function mediaGreedy(
  model: LoadedModel,
  ids: readonly number[],
  media: readonly EmbeddedMedia[],
  count: number,
): Promise<number[]> {
  const settings = model.settings({ maxTokens: count, temperature: 0, ignoreEos: true });
  const found: number[] = [];
  for await (const id of model.idsOf(mediaTimeline(model, ids, media), settings, true)) found.push(id);
  return found;
}
