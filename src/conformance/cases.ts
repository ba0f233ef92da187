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
  // Of blocks of GGUF and the floating-point modes of MLX there are no GPU kernels.
  for (const c of cases) if (/mxfp|nvfp|q\d_|iq4/.test(c.name)) c.cpuOnly = true;
  const seen = new Set<string>();
  return cases.filter(({ op, name }) => {
    const key = `${op} ${name}`;
    return !seen.has(key) && seen.add(key);
  });
}
