/** Requests at once on software Metal. */
import { assertEquals } from "@std/assert";
import type { Model } from "../../mod.ts";
import { generated } from "../support/calls.ts";

/** Greedy options without drafts, of a few tokens. */
export const PLAIN = { temperature: 0, ignoreEos: true, maxTokens: 5, speculative: false } as const;

/** Tokens that a fixture's vocabulary has. */
export function tokens(count: number, seed = 0): number[] {
  return Array.from({ length: count }, (_, i) => 3 + (i * i * 31 + i * (7 + seed)) % 230);
}

/** Prompts of several lengths. */
export const PROMPTS = [40, 7, 90].map((length, i) => tokens(length, i));

/**
 * Throws unless `PROMPTS` at once get the tokens of each alone, without drafts (their prefixes are found then) and with them.
 * Returns these tokens.
 */
export async function checkTogether(model: Model): Promise<number[][]> {
  const expected: number[][] = [];
  for (const ids of PROMPTS) expected.push(await generated(model, ids, PLAIN));
  for (const options of [PLAIN, { ...PLAIN, speculative: 3 }]) {
    const found = await Promise.all(PROMPTS.map((ids) => generated(model, ids, options)));
    assertEquals(found, expected, `speculative: ${options.speculative}`);
  }
  return expected;
}
