/** How far a converted model's predictions are from the original's. */
import type { Model } from "../engine/api.ts";

/** Means over tokens. */
export interface Divergence {
  /** mean of Σ p ln(p / q) over the vocabulary, in nats a token; p of the original, q of the conversion */ kl:
    number;
  /** share of tokens for which both have the same most likely next token */ agreement: number;
  /** predictions that were compared */ tokens: number;
}

/** Compares the predictions of two models along texts of token ids. */
export async function divergence(
  original: Model,
  conversion: Model,
  texts: readonly (readonly number[])[],
  options: { signal?: AbortSignal; onProgress?: (done: number, total: number) => void } = {},
): Promise<Divergence> {
  const { signal, onProgress } = options;
  const V = original.config.vocabularySize;
  let kl = 0, agreement = 0, tokens = 0;
  for (const [index, ids] of texts.entries()) {
    const last = ids.length;
    const p = await original.logits(ids, { last, signal });
    const q = await conversion.logits(ids, { last, signal });
    for (let row = 0; row < last; row++) {
      const [a, b] = [p, q].map((logits) => logits.subarray(row * V, (row + 1) * V));
      kl += klOfLogits(a, b);
      if (largest(a) === largest(b)) agreement++;
    }
    tokens += last;
    onProgress?.(index + 1, texts.length);
  }
  return { kl: kl / tokens, agreement: agreement / tokens, tokens };
}

/** Σ p ln(p / q) in nats of two rows of logits. */
export function klOfLogits(p: Float32Array, q: Float32Array): number {
  const logP = logSumExp(p), logQ = logSumExp(q);
  let sum = 0;
  for (let i = 0; i < p.length; i++) {
    const log = p[i] - logP;
    sum += Math.exp(log) * (log - (q[i] - logQ));
  }
  return Math.max(0, sum); // rounding may leave a little less
}

function logSumExp(x: Float32Array): number {
  const most = x[largest(x)];
  let sum = 0;
  for (const value of x) sum += Math.exp(value - most);
  return most + Math.log(sum);
}

function largest(x: Float32Array): number {
  let at = 0;
  for (let i = 1; i < x.length; i++) if (x[i] > x[at]) at = i;
  return at;
}
