/** Several sequences at once, and checks of drafts, through the whole engine: scheduler, sampling and cache included. */
import type { DeviceKind } from "../../ffi/device.ts";
import { loadWith } from "../../src/engine/load.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import { CANDIDATE_OUTPUTS } from "../../src/engine/results.ts";
import { median } from "../statistics.ts";

/** Decoding of `batch` sequences. */
export interface BatchTiming {
  batch: number;
  /** of all sequences together */ tokensPerSecond: number;
  /** between two tokens of one sequence */ secondsPerToken: number;
}

/** Forwards of one sequence with several rows. */
export interface VerifyTiming {
  rows: number;
  /** of one forward, from call to results */ seconds: number;
}

const PROMPT = 128;
const REPETITIONS = 3;

/** Loads a folder and times it; `tokens`: that each sequence draws. */
export async function timeBatches(
  folder: string,
  device: DeviceKind,
  sizes: readonly number[],
  tokens: number,
  matrixUnits: boolean,
): Promise<{ batches: BatchTiming[]; verifies: VerifyTiming[] }> {
  await using model = await loadWith(folder, { device, matrixUnits, contextLength: 2048 }, {
    keptPrefixes: 0,
  });
  const batches: BatchTiming[] = [];
  for (const batch of [sizes[0], ...sizes]) { // the first once more, to warm up
    const times: number[] = [];
    for (let i = 0; i < (batches.length === 0 ? 1 : REPETITIONS); i++) {
      times.push(await decode(model, batch, tokens));
    }
    const seconds = median(times);
    batches.push({ batch, tokensPerSecond: batch * tokens / seconds, secondsPerToken: seconds / tokens });
  }
  const verifies: VerifyTiming[] = [];
  for (const rows of [1, 2, 4, 8]) verifies.push({ rows, seconds: await verify(model, rows, tokens) });
  return { batches: batches.slice(1), verifies };
}

function prompt(seed: number): number[] {
  return Array.from(
    { length: PROMPT },
    (_, i) => 3 + (seed * 7919 + i * (31 + seed)) % 1000,
  );
}

/** Seconds in which `batch` sequences draw `tokens` tokens each, after their first. */
async function decode(model: LoadedModel, batch: number, tokens: number): Promise<number> {
  const options = { maxTokens: tokens + 1, temperature: 0, ignoreEos: true };
  const streams = Array.from({ length: batch }, (_, i) => model.generate(prompt(i), options));
  await Promise.all(streams.map((stream) => stream.next()));
  const started = performance.now();
  await Promise.all(streams.map(async (stream) => {
    for await (const _ of stream);
  }));
  return (performance.now() - started) / 1e3;
}

/** Seconds of a forward that checks `rows` - 1 drafts, all of which are taken to be right. */
async function verify(model: LoadedModel, rows: number, forwards: number): Promise<number> {
  const { forward } = model.engine;
  const sequence = forward.sequence();
  try {
    await forward.prefill(sequence, prompt(99), { outputs: 0, mask: 0 }, () => {});
    const times: number[] = [];
    for (let i = 0; i < forwards + 3; i++) {
      const tokens = Array.from({ length: rows }, (_, row) => 3 + (i * 37 + row * 11) % 200);
      const started = performance.now();
      await forward.speculate({
        sequence,
        mask: CANDIDATE_OUTPUTS,
        signal: undefined,
        rows,
        build: () => ({ tokens, requests: tokens.map(() => ({})) }),
        take: (results) => results.rows,
      });
      if (i >= 3) times.push((performance.now() - started) / 1e3);
    }
    return median(times);
  } finally {
    sequence.dispose();
  }
}
