/** Chooses few and small cases that together are about all of the given variants. */
import type { TableCase } from "./case.ts";

/** Work of a case that costs next to nothing, and of one that is too small to say much. */
const CHEAP = 2e5;
const TOO_SMALL = 3e4;

/** The chosen cases, and the variants that no case is about. */
export interface Selection {
  cases: TableCase[];
  missing: string[];
}

/** Prefers cases that are about nothing else, so that a failure concerns the given variants. */
export function select(cases: readonly TableCase[], variants: Iterable<string>): Selection {
  const wanted = new Set(variants);
  const open = new Set(wanted);
  const chosen = [
    ...take(cases.filter((c) => c.variants.every((variant) => wanted.has(variant))), open),
    ...take(cases.filter((c) => c.variants.some((variant) => open.has(variant))), open),
  ];
  return { cases: chosen, missing: [...open] };
}

/** Takes again and again the case that is about the most variants in `open`, for its work, and strikes them out. */
function take(cases: readonly TableCase[], open: Set<string>): TableCase[] {
  const chosen: TableCase[] = [];
  const left = new Set(cases);
  while (open.size > 0) {
    let best: TableCase | undefined;
    let bestScore = 0;
    for (const candidate of left) {
      const count = new Set(candidate.variants.filter((variant) => open.has(variant))).size;
      if (count === 0) left.delete(candidate);
      const score = count * Math.min(1, candidate.work / TOO_SMALL) / (CHEAP + candidate.work);
      if (score > bestScore) [best, bestScore] = [candidate, score];
    }
    if (best === undefined) break;
    chosen.push(best);
    left.delete(best);
    for (const variant of best.variants) open.delete(variant);
  }
  return chosen;
}
