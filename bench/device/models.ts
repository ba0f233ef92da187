/** The fixture models on a device against their golden values. */
import type { DeviceKind } from "../../ffi/device.ts";
import { load } from "../../mod.ts";
import {
  cosine,
  divergence,
  fixtureModel,
  GOLDEN_MODELS,
  maxDifference,
  readGolden,
} from "../../tests/support/models.ts";

/** How one model did. */
export interface ModelResult {
  model: string;
  precision: string;
  /** smallest of all prompts' last eight rows */ cosine: number;
  /** largest */ difference: number;
  /** greedy continuations equal to the golden ones, of how many */ greedy: [number, number];
}

/** Runs every fixture model that is there. */
export async function goldenModels(device: DeviceKind): Promise<ModelResult[]> {
  const results: ModelResult[] = [];
  for (const name of GOLDEN_MODELS) {
    const folder = fixtureModel(name);
    if (folder === null) continue;
    const golden = await readGolden(folder);
    const prompts = golden.prompts.filter(({ media }) => !media?.length);
    for (const precision of ["exact", "fast"] as const) {
      const result: ModelResult = {
        model: name,
        precision,
        cosine: 1,
        difference: 0,
        greedy: [0, prompts.length],
      };
      await using model = await load(folder, {
        device,
        precision,
        kvCache: precision === "exact" ? "f32" : "f16",
      });
      const { vocabularySize } = model.config;
      for (const { name: prompt, input_ids: ids, greedy } of prompts) {
        const expected = golden.tensors.get(`${prompt}.logits_last8`)!.data;
        const logits = await model.logits(ids, { last: 8 });
        for (let at = 0; at < 8 * vocabularySize; at += vocabularySize) {
          const [a, b] = [logits, expected].map((values) => values.subarray(at, at + vocabularySize));
          result.cosine = Math.min(result.cosine, cosine(a, b));
          result.difference = Math.max(result.difference, maxDifference(a, b));
        }
        const continued: number[] = [];
        const options = { maxTokens: greedy.length, temperature: 0, ignoreEos: true };
        for await (const id of model.generate(ids, options)) continued.push(id);
        if (continued.join() === greedy.join()) result.greedy[0]++;
      }
      results.push(result);
    }
  }
  return results;
}

/** What keys and values as 8-bit codes change in one model. */
export interface CodedResult {
  model: string;
  precision: string;
  /** mean over positions from an f16 cache, in nats */ divergence: number;
  /** root mean square of the logits' difference from the CPU device's in exact mode, as a share of what codes change there */
  share: number;
}

const CODED_MODELS = ["e2b", "e4b", "gemma3"];
const CODED_TOKENS = 400;

/** Runs fixture models with a cache of codes. */
export async function codedModels(device: DeviceKind): Promise<CodedResult[]> {
  const results: CodedResult[] = [];
  const ids = Array.from({ length: CODED_TOKENS }, (_, i) => 3 + (i * i * 31 + i * 7) % 120);
  for (const name of CODED_MODELS) {
    const folder = fixtureModel(name);
    if (folder === null) continue;
    const logits = async (device: DeviceKind, precision: "exact" | "fast", kvCache: "f16" | "f32" | "q8") => {
      await using model = await load(folder, { device, precision, kvCache });
      return { V: model.config.vocabularySize, values: await model.logits(ids, { last: ids.length }) };
    };
    const [numbers, codes] = [await logits("cpu", "exact", "f32"), await logits("cpu", "exact", "q8")];
    for (const precision of ["exact", "fast"] as const) {
      const [half, coded] = [await logits(device, precision, "f16"), await logits(device, precision, "q8")];
      results.push({
        model: name,
        precision,
        divergence: divergence(half.values, coded.values, half.V),
        share: rootMeanSquare(coded.values, codes.values) / rootMeanSquare(codes.values, numbers.values),
      });
    }
  }
  return results;
}

function rootMeanSquare(a: Float32Array, b: Float32Array): number {
  return Math.sqrt(a.reduce((sum, x, i) => sum + (x - b[i]) ** 2, 0) / a.length);
}
