/** Cases of candidates: ties, adjustments, masks, vocabularies around the number of candidates. */
import type { OutputRow } from "../../engine/input.ts";
import { candidatesVariants } from "../../schedule/variants.ts";
import { F32, seedOf, type TableCase } from "../case.ts";
import { ProblemBuilder } from "../problem.ts";
import { Random } from "../random.ts";

interface CandidatesDescription {
  /** says what the logits are like */ logits:
    | "random"
    | "ties"
    | "equal"
    | "rising"
    | "falling"
    | "mostly -1e30";
  vocabulary: number;
  rows?: number;
  adjusted?: boolean;
  /** share of tokens that the mask allows, or how many */ mask?: "half" | "five";
  temperature?: number;
}

function logitsOf(kind: CandidatesDescription["logits"], count: number, random: Random): Float64Array {
  const value: Record<typeof kind, (i: number) => number> = {
    random: () => random.normal(0, 8),
    // few values in steps that f32 holds exactly, so that order never hangs on rounding
    ties: () => random.integer(21) / 4 - 2.5,
    equal: () => -3.25,
    rising: (i) => i / 1024 - 60,
    falling: (i) => 60 - i / 1024,
    "mostly -1e30": (i) => i % 1000 === 7 ? random.normal(0, 8) : -1e30,
  };
  return Float64Array.from({ length: count }, (_, i) => value[kind](i));
}

function outputOf(d: CandidatesDescription, row: number, random: Random): OutputRow {
  const { vocabulary } = d;
  const adjustments = !d.adjusted
    ? undefined
    : random.permutation(vocabulary).slice(0, Math.min(40, vocabulary))
      .sort((a, b) => a - b)
      .map((id, i) => ({
        id,
        multiply: [1, 0.5, 0.25, 2][i % 4],
        add: [0, -1, 3.5, 0.25][random.integer(4)],
      }));
  let mask: Uint32Array | undefined;
  if (d.mask) {
    mask = new Uint32Array(Math.ceil(vocabulary / 32));
    const allowed = d.mask === "five"
      ? random.permutation(vocabulary).slice(0, 5)
      : Array.from({ length: vocabulary }, (_, id) => id).filter((id) => id === 0 || random.bits() & 1);
    for (const id of allowed) mask[id >> 5] |= 1 << (id & 31);
  }
  return { row, adjustments, mask, temperature: d.temperature && Math.fround(d.temperature * (1 + row)) };
}

function candidatesCase(d: CandidatesDescription): TableCase {
  const { vocabulary, rows = 1 } = d;
  const name = `${d.logits} V=${vocabulary} rows=${rows}` + (d.adjusted ? " adjusted" : "") +
    (d.mask ? ` mask=${d.mask}` : "") + (d.temperature ? ` temperature=${d.temperature}` : "");
  return {
    op: "candidates",
    name,
    tolerance: F32,
    variants: candidatesVariants({ ...d, rows, masked: d.mask !== undefined }),
    work: 20 * rows * vocabulary,
    build(exact) {
      const random = new Random(seedOf(name));
      const outputs = Array.from({ length: rows }, (_, row) => outputOf(d, row, random));
      const builder = new ProblemBuilder(random, outputs.map(({ row }) => ({ position: row })), {
        outputs,
        vocabulary,
      });
      const values = logitsOf(d.logits, rows * vocabulary, random);
      return builder.finish({
        kind: "candidates",
        logits: builder.activation("logits", ["out_rows", vocabulary], values),
        ids: builder.output("ids", ["out_rows", 256], "u32"),
        values: builder.output("values", ["out_rows", 256]),
        stats: builder.output("stats", ["out_rows", 4]),
      }, exact);
    },
  };
}

/** All cases of candidates. */
export function candidatesCases(): TableCase[] {
  const list: CandidatesDescription[] = [];
  for (const vocabulary of [1, 2, 31, 255, 256, 257, 1000]) {
    for (const logits of ["random", "ties", "equal", "rising", "falling"] as const) {
      list.push({ logits, vocabulary }, { logits, vocabulary, rows: 3, adjusted: true, temperature: 0.7 });
    }
    for (const mask of ["half", "five"] as const) {
      list.push({ logits: "ties", vocabulary, rows: 2, mask, adjusted: true, temperature: 1.5 });
    }
  }
  list.push(
    { logits: "random", vocabulary: 262144, temperature: 0.7 },
    { logits: "random", vocabulary: 262144, rows: 3, adjusted: true, temperature: 2 },
    { logits: "ties", vocabulary: 262144, rows: 2, mask: "half", adjusted: true },
    { logits: "equal", vocabulary: 262144 },
    { logits: "rising", vocabulary: 262144 },
    { logits: "falling", vocabulary: 262144, adjusted: true },
    { logits: "mostly -1e30", vocabulary: 262144, temperature: 0.01 },
    { logits: "mostly -1e30", vocabulary: 3000, rows: 2, adjusted: true },
    { logits: "random", vocabulary: 5000, rows: 2, mask: "five" },
    { logits: "random", vocabulary: 700, temperature: 100 },
    { logits: "random", vocabulary: 700, temperature: 0.001 },
    { logits: "random", vocabulary: 2048, rows: 65, adjusted: true },
  );
  return list.map(candidatesCase);
}
