/**
 * Chooses the next token: temperature, then top-k, top-p (of what top-k left) and min-p, then the largest sum of scaled
 * logit and Gumbel noise among the tokens that stay. A draw from the device's 256 candidates is taken only where it must
 * equal the draw from the whole row.
 */
import { eachReaching, gumbel, largestGumbel, mayReach, NOISE_BLOCK } from "./noise.ts";

/** What decides a draw beside the logits. */
export interface SamplingOptions {
  /** 0: greedy */ temperature: number;
  /** tokens kept; 0: all */ topK: number;
  /** probability mass kept; 1: all */ topP: number;
  /** tokens below this share of the likeliest one's probability are dropped; 0: none */ minP: number;
  seed: number;
}

/** Adjusted logits in descending order, ties by lower id. */
export interface Ranked {
  ids: ArrayLike<number>;
  /** f32 */ values: ArrayLike<number>;
  /** entries of both that are tokens with a finite logit */ count: number;
}

/** The best candidates of a row as the device returns them. */
export interface Candidates extends Ranked {
  /** whether tokens exist beyond the list */ more: boolean;
  /** tokens in all */ vocabularySize: number;
  /** log-sum-exp over the whole row of adjusted logit / temperature */ logSumExp: number;
}

/**
 * The token that follows, from the candidates and, where it is there, `logitOf`: the adjusted logit of any token, asked for those
 * beyond the list whose noise is large. Undefined where only the whole row can tell. `position` is that of the token to be drawn.
 */
export function sampleCandidates(
  candidates: Candidates,
  options: SamplingOptions,
  position: number,
  logitOf?: (id: number) => number,
): number | undefined {
  if (options.temperature === 0 || options.topK === 1) return candidates.ids[0];
  const { temperature, topK } = options;
  const inside = topK > 0 ? Math.min(topK, candidates.count) : candidates.count;
  const weights = weightsOf(candidates, inside, temperature);
  const kept = keptCandidates(candidates, weights, options);
  if (kept !== undefined) return draw(candidates, weights, kept, options, position).id;
  if (topK !== 0 || options.topP !== 1) return undefined;
  return drawWithTail(candidates, weights, options, position, logitOf);
}

/** The token that follows, from all adjusted logits of a row (masked ones are -Infinity). */
export function sampleRow(logits: Float32Array, options: SamplingOptions, position: number): number {
  if (options.temperature === 0 || options.topK === 1) return argmax(logits);
  const { temperature: T, topK, topP } = options;
  if (topK === 0 && topP === 1) return drawUnranked(logits, options, position);
  const floor = minimumValue(logits[argmax(logits)], options);
  const top = topK === 0 ? topOf(logits, T, topP) : undefined;
  const ranked = rank(logits, top && Math.max(top.least, floor));
  const weights = weightsOf(ranked, ranked.count, T);
  let kept = topK === 0 ? ranked.count : Math.min(topK, ranked.count);
  if (topP < 1) kept = massPrefix(weights, kept, topP * (top?.mass ?? prefixMass(weights, kept)));
  while (kept > 1 && ranked.values[kept - 1] < floor) kept--;
  return draw(ranked, weights, kept, options, position).id;
}

/** Tokens of a row of which the device ranks all. */
const FEW = 256;
/** Classes of logits by their distance from the largest, and how many of them a nat has. */
const CLASSES = 1024, CLASSES_PER_NAT = 16;

/**
 * The mass of a row, the sum of exp((value - best) / T), and a logit such that those from it on hold at least the share `topP`
 * of it: few rows need all their tokens ranked. Undefined for rows that are ranked in whole, whose sum is taken in that order
 * as it is with candidates.
 */
function topOf(logits: Float32Array, T: number, topP: number): { mass: number; least: number } | undefined {
  const best = logits[argmax(logits)];
  const masses = new Float64Array(CLASSES);
  let count = 0, mass = 0;
  for (let id = 0; id < logits.length; id++) {
    if (!(logits[id] > -Infinity)) continue;
    const distance = (best - logits[id]) / T;
    const weight = Math.exp(-distance);
    masses[Math.min(CLASSES - 1, distance * CLASSES_PER_NAT) | 0] += weight;
    mass += weight;
    count++;
  }
  if (count <= FEW) return undefined;
  let last = 0;
  // A little more than exact, so that another order of the sum cannot need the next class.
  for (let sum = masses[0]; last < CLASSES - 1 && sum < topP * mass * (1 + 1e-9); sum += masses[++last]);
  const isWhole = last === CLASSES - 1;
  // The next class begins here; one class more, for the rounding of its end.
  return { mass, least: isWhole ? -Infinity : best - T * (last + 2) / CLASSES_PER_NAT };
}

/** How many candidates stay; undefined if tokens beyond the list might. */
function keptCandidates(
  candidates: Candidates,
  weights: Float64Array,
  options: SamplingOptions,
): number | undefined {
  const { values, count, more, logSumExp } = candidates;
  const { temperature: T, topK, topP } = options;
  const wholeSet = !more || (topK > 0 && topK <= count); // top-k ends inside the list
  const inside = topK > 0 ? Math.min(topK, count) : count;
  // min-p ends inside the list if its last entry is already too small.
  const floor = minimumValue(values[0], options);
  let aboveFloor = inside;
  while (aboveFloor > 1 && values[aboveFloor - 1] < floor) aboveFloor--;
  const floorInside = wholeSet || aboveFloor < count;
  if (topP === 1) return floorInside ? aboveFloor : undefined;
  if (wholeSet) {
    return Math.min(aboveFloor, massPrefix(weights, inside, topP * prefixMass(weights, inside)));
  }

  // The mass is measured against the whole row, by the device's f32 sum. Where that sum's error could move the end of the
  // prefix, or top-k ends beyond the list so that the mass is relative to an unknown sum, the row must decide.
  if (topK > 0) return undefined;
  const error = 1e-4 + 1e-6 * Math.abs(logSumExp);
  const scale = Math.exp(values[0] / T - logSumExp);
  const least = massPrefix(weights, count, (topP - error) / scale);
  const most = massPrefix(weights, count, (topP + error) / scale);
  const reached = prefixMass(weights, most) >= (topP + error) / scale;
  if (reached && least === most) return Math.min(aboveFloor, most);
  // Even an uncertain end does not matter beyond min-p's.
  return floorInside && least >= aboveFloor ? aboveFloor : undefined;
}

/** Smallest logit that min-p keeps. */
function minimumValue(best: number, { minP, temperature }: SamplingOptions): number {
  return minP === 0 ? -Infinity : best + temperature * Math.log(minP);
}

let weightRoom = new Float64Array(256);

/** exp((value - best) / T) of the first `count`; valid until the next call. */
function weightsOf({ values }: Ranked, count: number, T: number): Float64Array {
  if (weightRoom.length < count) weightRoom = new Float64Array(count);
  for (let i = 0; i < count; i++) weightRoom[i] = Math.exp((values[i] - values[0]) / T);
  return weightRoom;
}

/** Sum of the first `count` weights. */
function prefixMass(weights: Float64Array, count: number): number {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += weights[i];
  return sum;
}

/** Length of the shortest prefix whose mass is at least `wanted`, at most `count`. */
function massPrefix(weights: Float64Array, count: number, wanted: number): number {
  let sum = 0;
  for (let i = 0; i < count; i++) {
    sum += weights[i];
    if (sum >= wanted) return i + 1;
  }
  return count;
}

/** A token and its value / T + noise. */
interface Drawn {
  id: number;
  score: number;
}

/** The largest of value / T + noise over the first `kept`. */
function draw(
  { ids, values }: Ranked,
  weights: Float64Array,
  kept: number,
  options: SamplingOptions,
  position: number,
): Drawn {
  const { temperature: T, seed } = options;
  let id = ids[0];
  let score = values[0] / T + gumbel(seed, position, id);
  let least = Math.exp(values[0] / T - score); // e^-noise with which the first would be as good as the best
  for (let i = 1; i < kept; i++) {
    if (!mayReach(seed, position, ids[i], least * weights[i])) continue;
    const own = values[i] / T + gumbel(seed, position, ids[i]);
    if (own < score || (own === score && ids[i] > id)) continue;
    [id, score] = [ids[i], own];
    least = Math.exp(values[0] / T - score);
  }
  return { id, score };
}

/**
 * As `draw` over all tokens down to min-p: the best candidate, unless the noise of a token beyond the list is so large that it
 * wins. A token there has the last candidate's logit at most, so only those matter whose noise is larger than what that logit
 * lacks; undefined if there is one and nobody to ask for its logit.
 */
function drawWithTail(
  candidates: Candidates,
  weights: Float64Array,
  options: SamplingOptions,
  position: number,
  logitOf: ((id: number) => number) | undefined,
): number | undefined {
  const { ids, values, count, vocabularySize } = candidates;
  const { temperature: T, seed } = options;
  const floor = minimumValue(values[0], options);
  let { id: chosen, score } = draw(candidates, weights, count, options, position);
  const lacking = () => Math.exp(values[count - 1] / T - score) * (1 + 1e-9); // e^-noise
  let least = lacking();
  let listed: Set<number> | undefined;
  let isOpen = false;
  const consider = (id: number) => {
    if (id >= vocabularySize) return;
    const noise = gumbel(seed, position, id);
    if (Math.exp(-noise) > least) return;
    if (listed === undefined) {
      listed = new Set();
      for (let i = 0; i < count; i++) listed.add(ids[i]);
    }
    if (listed.has(id)) return;
    if (logitOf === undefined) {
      isOpen = true;
      return;
    }
    const logit = logitOf(id);
    if (!(logit >= floor) || logit === -Infinity) return;
    const own = logit / T + noise;
    if (own < score || (own === score && id > chosen)) return;
    [chosen, score] = [id, own];
    least = lacking();
  };
  for (let block = 0; block * NOISE_BLOCK < vocabularySize && !isOpen; block++) {
    eachReaching(seed, position, block, least, consider);
  }
  return isOpen ? undefined : chosen;
}

/** As `draw` over all tokens down to min-p, which need no order. */
function drawUnranked(logits: Float32Array, options: SamplingOptions, position: number): number {
  const { temperature: T, seed } = options;
  let chosen = argmax(logits);
  const floor = minimumValue(logits[chosen], options);
  let best = -Infinity;
  for (let start = 0; start < logits.length; start += NOISE_BLOCK) {
    const end = Math.min(start + NOISE_BLOCK, logits.length);
    let largest = -Infinity;
    for (let id = start; id < end; id++) if (logits[id] > largest) largest = logits[id];
    // No token of the block can win; a little more than exact, so that rounding cannot hide one.
    const bound = largest / T + largestGumbel(seed, position, start / NOISE_BLOCK) + 1e-9;
    if (!(largest >= floor) || largest === -Infinity || bound < best) continue;
    for (let id = start; id < end; id++) {
      if (!(logits[id] >= floor) || logits[id] === -Infinity) continue;
      const score = logits[id] / T + gumbel(seed, position, id);
      if (score > best) {
        best = score;
        chosen = id;
      }
    }
  }
  return chosen;
}

/** Index of the largest, the lowest of equals. */
export function argmax(values: ArrayLike<number>): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** All finite logits from `least` on in descending order, ties by lower id. */
export function rank(
  logits: Float32Array,
  least = -Infinity,
): Ranked & { ids: Uint32Array; values: Float32Array } {
  // One number to sort by: the bits of the logit turned into a descending integer, then the id. It has at most 53 bits for
  // up to 2^21 tokens, and native sorting of numbers is several times faster than a comparison function.
  const bits = new Int32Array(logits.buffer, logits.byteOffset, logits.length);
  const keys = new Float64Array(logits.length);
  let count = 0;
  for (let id = 0; id < logits.length; id++) {
    if (!(logits[id] > -Infinity && logits[id] >= least)) continue;
    const ascending = logits[id] === 0 ? 0 : bits[id] < 0 ? bits[id] ^ 0x7fffffff : bits[id]; // -0 equals 0
    keys[count++] = (0x7fffffff - ascending) * ID_RANGE + id;
  }
  const sorted = keys.subarray(0, count).sort();
  const ids = new Uint32Array(count);
  for (let i = 0; i < count; i++) ids[i] = sorted[i] - Math.floor(sorted[i] / ID_RANGE) * ID_RANGE; // faster than %
  const values = new Float32Array(count);
  for (let i = 0; i < count; i++) values[i] = logits[ids[i]];
  return { ids, values, count };
}

const ID_RANGE = 2 ** 21;
