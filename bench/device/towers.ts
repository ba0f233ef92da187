/** Towers on a device: the fixtures' against the CPU device, and those of full size in time. */
import type { DeviceKind } from "../../ffi/device.ts";
import { loadWith } from "../../src/engine/load.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import type { AudioFeatures, AudioFrames, ImagePatches } from "../../src/media/types.ts";
import { cosine, fixtureModel, maxDifference } from "../../tests/support/models.ts";
import { median } from "../statistics.ts";
import { shapes, writeSynthetic } from "../synthetic.ts";

/** How one tower did. */
export interface TowerResult {
  model: string;
  what: "image" | "audio";
  precision: string;
  /** with the CPU device in exact mode */ cosine: number;
  difference: number;
}

/** Milliseconds of one picture of 960 × 672 and of 30 s of sound. */
export interface TowerTimes {
  image: { tokens: number; first: number; median: number };
  audio: { tokens: number; first: number; median: number };
  /** bytes */ activations: number;
}

const MODELS = ["e2b-mm-clipped", "31b-mm", "12b"];

function noise(seed: number): () => number {
  let state = seed;
  return () => (state = (Math.imul(state, 1103515245) + 12345) >>> 0) >>> 8;
}

/** A picture of noise as a model's vision takes it. */
function picture({ config: { vision } }: LoadedModel, columns: number, rows: number): ImagePatches {
  const merged = vision!.kind === "patches";
  const side = vision!.patchSize * (merged ? vision!.poolingKernelSize : 1);
  const next = noise(columns);
  return {
    pixels: Uint8Array.from({ length: columns * rows * side * side * 3 }, () => next() & 255),
    positions: Int32Array.from(
      { length: columns * rows * 2 },
      (_, i) => i % 2 === 0 ? (i >> 1) % columns : Math.floor((i >> 1) / columns),
    ),
    columns,
    rows,
  };
}

/** A sound of noise as a model's ears take it. */
function sound({ config: { audio } }: LoadedModel, frames: number): AudioFeatures | AudioFrames {
  const next = noise(frames);
  const values = (count: number) => Float32Array.from({ length: count }, () => next() / 2 ** 23 - 1);
  if (audio!.kind === "frames") return { samples: values(frames * audio!.frameSize), frames };
  return { logMel: values(frames * 128), valid: new Uint8Array(frames).fill(1) };
}

/** The fixtures' towers on the device beside those on the CPU. */
export async function compareTowers(device: DeviceKind): Promise<TowerResult[]> {
  const results: TowerResult[] = [];
  for (const name of MODELS) {
    const folder = fixtureModel(name);
    if (folder === null) continue;
    await using reference = await loadWith(
      folder,
      { device: "cpu", precision: "exact", contextLength: 512 },
      {},
    );
    const image = picture(reference, 9, 6);
    const seen = await reference.engine.towers.embedImage(image);
    const clip = reference.config.audio && sound(reference, 90);
    const heard = clip && await reference.engine.towers.embedAudio(clip);
    for (const precision of ["exact", "fast"] as const) {
      await using model = await loadWith(folder, { device, precision, contextLength: 512 }, {});
      const { towers } = model.engine;
      const add = (what: TowerResult["what"], found: Float32Array, expected: Float32Array) =>
        results.push({
          model: name,
          what,
          precision,
          cosine: cosine(found, expected),
          difference: maxDifference(found, expected),
        });
      add("image", (await towers.embedImage(image)).values, seen.values);
      if (clip && heard) add("audio", (await towers.embedAudio(clip)).values, heard.values);
    }
  }
  return results;
}

/** Times the towers of E4B's size with random weights, which are made here. */
export async function timeTowers(device: DeviceKind, repetitions: number): Promise<TowerTimes> {
  const folder = await Deno.makeTempDir({ prefix: "markbase-towers-" });
  try {
    await writeSynthetic(shapes["e4b-towers"], folder);
    await using model = await loadWith(folder, { device, contextLength: 1024 }, {});
    const { towers } = model.engine;
    const timed = async (work: () => Promise<{ tokens: number }>) => {
      const times: number[] = [];
      let tokens = 0;
      for (let i = 0; i <= repetitions; i++) {
        const start = performance.now();
        ({ tokens } = await work());
        times.push(performance.now() - start);
      }
      return { tokens, first: times[0], median: median(times.slice(1)) };
    };
    const [image, clip] = [picture(model, 60, 42), sound(model, 2999)];
    return {
      image: await timed(() => towers.embedImage(image)),
      audio: await timed(() => towers.embedAudio(clip)),
      activations: towers.activationBytes,
    };
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}
