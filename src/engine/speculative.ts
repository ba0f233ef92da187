/**
 * Speculation: drafts of the tokens after the next one, by a drafter network or by looking up how the text went on before.
 * The target computes them all in one forward and draws its own tokens with the same noise as ever; a draft stays exactly if
 * it is what the target draws. So drafts only decide how many tokens a forward gives, never which.
 */
import type { PageTable } from "./input.ts";
import type { Drafter } from "./drafter.ts";
import type { RowRequest } from "./part.ts";
import { CANDIDATES } from "./results.ts";

/** Drafts of one forward at most. */
export const MOST_DRAFTS = 8;

/** Counts of one reply's speculation. */
export interface SpeculationCounts {
  /** Where drafts came from: the drafter network, or text that went on like this before. */
  drafter: "network" | "lookup";
  /** Tokens that were drafted. */
  drafted: number;
  /** Of these, tokens that the model drew too. */
  accepted: number;
  /** Forwards of the model that gave the reply's tokens. */
  forwards: number;
}

/** Candidates of one row. */
export interface RowCandidates {
  /** u32 [256] */ ids: Uint32Array;
  /** f32 [256] */ values: Float32Array;
  /** f32 [4] */ stats: Float32Array;
}

/** What one sequence asks of the drafter. */
export interface DraftRequest {
  /** the last token that was drawn */ token: number;
  /** f32 [H] the target's state before that */ state: Float32Array<ArrayBuffer>;
  /** drafts wanted, at least 1 */ count: number;
  request: RowRequest;
  /** The draft at step `step`; undefined ends the drafts. */
  choose(candidates: RowCandidates, step: number): number | undefined;
}

/** Drafts for several sequences, which share the steps of the drafter. */
export async function draftTokens(
  drafter: Drafter,
  requests: readonly (DraftRequest & { length: number; tables: readonly PageTable[] })[],
  signal: AbortSignal | undefined,
): Promise<number[][]> {
  const drafts = requests.map((): number[] => []);
  const wanted = requests.map(({ count }) => count);
  // A step's rows begin where its predecessor's did, so those that end first go last.
  const order = requests.map((_, i) => i).sort((a, b) => wanted[b] - wanted[a]);
  order.forEach((i, row) => drafter.begin(requests[i].state, row));
  for (let step = 0; step < wanted[order[0]]; step++) {
    const active = order.filter((i) => wanted[i] > step);
    const { ids, values, stats } = await drafter.step(
      active.map((i) => ({ ...requests[i], token: drafts[i].at(-1) ?? requests[i].token })),
      { signal },
    );
    active.forEach((i, row) => {
      if (drafts[i].length < step) return; // it ended its drafts, and only keeps its row
      const [from, to] = [row * CANDIDATES, (row + 1) * CANDIDATES];
      const candidates = {
        ids: ids.subarray(from, to),
        values: values.subarray(from, to),
        stats: stats.subarray(4 * row, 4 * row + 4),
      };
      const token = requests[i].choose(candidates, step);
      if (token !== undefined) drafts[i].push(token);
    });
  }
  return drafts;
}

const LONGEST_MATCH = 3;
const SHORTEST_MATCH = 2;

/** The up to `count` tokens that followed the last place where the text ran as it does at its end. */
export function lookUp(ids: readonly number[], count: number): number[] {
  for (let size = LONGEST_MATCH; size >= SHORTEST_MATCH; size--) {
    const end = ids.length - size;
    for (let at = end - 1; at >= 0; at--) {
      let same = 0;
      while (same < size && ids[at + same] === ids[end + same]) same++;
      if (same === size) return ids.slice(at + size, at + size + count);
    }
  }
  return [];
}
