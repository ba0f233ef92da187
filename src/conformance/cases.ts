/** The conformance table: op × shapes × formats. It knows no device. */
import type { TableCase } from "./case.ts";
import { attentionCases } from "./cases/attention.ts";
import { candidatesCases } from "./cases/candidates.ts";
import { drafterCases } from "./cases/drafter.ts";
import { expertCases } from "./cases/experts.ts";
import { linearCases } from "./cases/linear.ts";
import { lookupCases } from "./cases/lookup.ts";
import { pointwiseCases } from "./cases/pointwise.ts";
import { routeCases } from "./cases/route.ts";
import { towerCases } from "./cases/towers.ts";

/** All cases, op by op. */
export function allCases(): TableCase[] {
  const cases = [
    ...lookupCases(),
    ...linearCases(),
    ...attentionCases(),
    ...pointwiseCases(),
    ...candidatesCases(),
    ...routeCases(),
    ...expertCases(),
    ...drafterCases(),
    ...towerCases(),
  ];
  const seen = new Set<string>();
  return cases.filter(({ op, name }) => {
    const key = `${op} ${name}`;
    return !seen.has(key) && seen.add(key);
  });
}
