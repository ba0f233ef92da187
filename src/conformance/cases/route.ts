/** Cases of route and top_k: which experts, in which order, with which shares. */
import { routeVariants, type RowKind, rowKinds } from "../../schedule/variants.ts";
import type { DimSymbol, Tensor } from "../../schedule/tensor.ts";
import {
  BLOCK_FORMATS,
  blockColumns,
  F32,
  formatName,
  MAIN_FORMATS,
  seedOf,
  type TableCase,
} from "../case.ts";
import { routerLogits } from "../oracle/moe.ts";
import { Oracle } from "../oracle/run.ts";
import { type PlainKind, type Problem, ProblemBuilder, type WeightFormat } from "../problem.ts";
import { Random } from "../random.ts";

interface RouteDescription {
  rows: number;
  /** width */ H: number;
  /** experts */ E: number;
  /** chosen */ K: number;
  format: WeightFormat;
  /** leading rows of class decode; default: all if there are at most 16, else none */ decodeRows?: number;
  /** plain formats: each expert of the second half repeats one of the first */ ties?: boolean;
  magnitude?: number;
  /** rows that differ, which later ones repeat, so that a few can be checked to be no near draws */ distinct?:
    number;
  /** the op runs on gathered rows */ gathered?: boolean;
}

const DISTINCT_ROWS = 48;
/** Least distance of two logits where they matter; among many rows some are nearer. */
const leastGap = (rows: number) => rows <= DISTINCT_ROWS ? 2e-4 : 1e-5;

function rowsOf(d: RouteDescription): { builder: (random: Random) => ProblemBuilder; symbol: DimSymbol } {
  const { rows, decodeRows = rows <= 16 ? rows : 0 } = d;
  const inputs = d.gathered ? 2 * rows : rows;
  const outputs = d.gathered ? Array.from({ length: rows }, (_, i) => ({ row: 2 * i + 1 })) : [{ row: 0 }];
  const all = Array.from({ length: inputs }, (_, position) => ({
    position,
    rowClass: position < decodeRows ? "decode" as const : "prefill" as const,
  }));
  return {
    builder: (random) => new ProblemBuilder(random, all, { outputs }),
    symbol: d.gathered ? "out_rows" : "rows",
  };
}

function inputsOf(
  { rows, H, magnitude = 1, distinct = DISTINCT_ROWS }: RouteDescription,
  random: Random,
): Float64Array {
  const values = random.normals(Math.min(rows, distinct) * H, 0.2 * magnitude, magnitude);
  return Float64Array.from({ length: rows * H }, (_, i) => values[i % values.length]);
}

function projectionOf(builder: ProblemBuilder, { E, H, format, ties }: RouteDescription): Tensor {
  if (!ties || blockColumns(format) > 1) return builder.matrix("projection", E, H, format);
  const half = builder.random.normals(E / 2 * H, 0, H ** -0.5);
  const values = Float64Array.from({ length: E * H }, (_, i) => half[i % half.length]);
  return builder.plain("projection", [E, H], format.kind as PlainKind, values);
}

function routeProblem(d: RouteDescription, seed: number, exact: boolean): Problem {
  const { H, E, K } = d;
  const { builder: build, symbol } = rowsOf(d);
  const builder = build(new Random(seed));
  return builder.finish({
    kind: "route",
    projection: projectionOf(builder, d),
    x: builder.activation("x", [symbol, H], inputsOf(d, builder.random)),
    scale: builder.vector("scale", H, "bf16", 6, 2),
    perExpertScale: builder.vector("per_expert_scale", E, "bf16", 1, 0.4),
    experts: builder.output("experts", [symbol, K], "u32"),
    y: builder.output("shares", [symbol, K]),
    eps: 1e-3,
    inScale: 0.5,
  }, exact);
}

/** A seed whose choices f32 can tell: no two logits among the best K + 1 of a row are near, but for wanted ties. */
function clearSeed(d: RouteDescription): number {
  const few = { ...d, rows: Math.min(d.rows, d.distinct ?? DISTINCT_ROWS), decodeRows: undefined };
  for (let seed = seedOf(name(d));; seed++) {
    const { plan, buffers, input } = routeProblem(few, seed, true);
    const [op] = plan.ops;
    if (op.kind !== "route") throw new TypeError("not a route");
    const oracle = new Oracle(plan, buffers);
    const read = (tensor: Tensor) => oracle.value(tensor, input);
    const logits = routerLogits(read(op.x), read(op.scale), read(op.projection), op);
    const isClear = Array.from({ length: few.rows }, (_, r) => {
      const best = [...new Set(logits.subarray(r * d.E, (r + 1) * d.E))].sort((a, b) => b - a).slice(
        0,
        d.K + 1,
      );
      return best.every((logit, i) => i === 0 || best[i - 1] - logit > leastGap(few.rows));
    }).every((clear) => clear);
    if (isClear) return seed;
  }
}

function name(d: RouteDescription): string {
  const parts = [`${formatName(d.format)} rows=${d.rows} H=${d.H} experts=${d.K}/${d.E}`];
  if (d.decodeRows !== undefined) parts.push(`decode=${d.decodeRows}`);
  if (d.magnitude) parts.push(`magnitude=${d.magnitude}`);
  for (const key of ["ties", "gathered"] as const) if (d[key]) parts.push(key);
  return parts.join(" ");
}

function kindsOf({ rows, decodeRows = rows <= 16 ? rows : 0 }: RouteDescription): RowKind[] {
  return rowKinds(decodeRows, rows - decodeRows);
}

function topKCase(
  title: string,
  rows: number,
  E: number,
  K: number,
  logits: (r: number, e: number) => number,
) {
  return {
    op: "top_k",
    name: `${title} rows=${rows} ${K}/${E}`,
    tolerance: F32,
    variants: ["top_k"],
    work: 20 * rows * E,
    build(exact: boolean) {
      const { builder: build } = rowsOf({ rows, H: 1, E, K, format: { kind: "f32" } });
      const builder = build(new Random(seedOf(title)));
      const values = Float64Array.from({ length: rows * E }, (_, i) => logits(Math.floor(i / E), i % E));
      return builder.finish({
        kind: "top_k",
        logits: builder.activation("logits", ["rows", E], values),
        perExpertScale: builder.vector("per_expert_scale", E, "bf16", 1, 0.4),
        experts: builder.output("experts", ["rows", K], "u32"),
        y: builder.output("shares", ["rows", K]),
      }, exact);
    },
  } as const satisfies TableCase;
}

/** All cases of the choice of experts. */
export function routeCases(): TableCase[] {
  const affine8: WeightFormat = { kind: "affine", bits: 8, group: 64, scales: "bf16" };
  const list: RouteDescription[] = [];
  for (const format of [...MAIN_FORMATS, affine8]) {
    for (const rows of [1, 3, 16, 17, 64]) list.push({ rows, H: 128, E: 9, K: 2, format });
    list.push({ rows: 5, H: 128, E: 9, K: 2, format, decodeRows: 0 });
    if (format.kind !== "affine") list.push({ rows: 3, H: 64, E: 8, K: 3, format, ties: true });
  }
  for (const [K, E] of [[1, 1], [1, 2], [2, 2], [3, 7], [8, 16], [8, 17], [8, 64]] as const) {
    for (const rows of [1, 5, 20]) list.push({ rows, H: 96, E, K, format: { kind: "bf16" } });
  }
  list.push(
    { rows: 2, H: 2816, E: 128, K: 8, format: affine8 },
    { rows: 20, H: 64, E: 5, K: 2, format: affine8, decodeRows: 3 },
    { rows: 4, H: 64, E: 5, K: 2, format: affine8, gathered: true },
    { rows: 4, H: 64, E: 5, K: 2, format: affine8, magnitude: 7e4 },
    { rows: 4, H: 33, E: 6, K: 4, format: { kind: "f32" }, ties: true },
    { rows: 1000, H: 256, E: 128, K: 8, format: affine8, distinct: 1000 },
    { rows: 1000, H: 256, E: 128, K: 8, format: { kind: "bf16" }, distinct: 1000 },
  );
  for (const format of BLOCK_FORMATS) {
    for (const rows of [1, 3, 20]) list.push({ rows, H: 256, E: 9, K: 2, format });
  }
  for (const rows of [63, 65, 32767, 32768, 32800, 40002]) {
    list.push({ rows, H: 5, E: 3, K: 2, format: { kind: "f32" } });
  }
  const routes = list.map((d): TableCase => ({
    op: "route",
    name: name(d),
    variants: routeVariants(d.format, kindsOf(d)),
    work: d.rows * d.H * d.E,
    tolerance: F32,
    build: (exact) => routeProblem(d, clearSeed(d), exact),
  }));
  const random = (r: number, e: number) => new Random(1000 * r + e).normal(0, 3);
  return [
    ...routes,
    ...[1, 3, 65, 32800].map((rows) => topKCase("random", rows, 7, 3, random)),
    topKCase("all equal", 3, 9, 4, () => 1.5),
    topKCase("steps with ties", 5, 16, 8, (r, e) => Math.floor((e * 7 + r) % 16 / 3)),
    topKCase("descending", 2, 128, 8, (_, e) => -e),
    topKCase("ascending", 2, 128, 8, (_, e) => e / 4),
    topKCase("far apart", 2, 8, 4, (_, e) => 200 * ((e * 5) % 8)),
    topKCase("large", 2, 8, 8, (_, e) => 3e38 - 1e37 * e),
  ];
}
