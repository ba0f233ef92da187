/** Cases of rms_norm, add, gelu_mul, softcap and rope. */
import type { DimSymbol } from "../../schedule/tensor.ts";
import { F32, seedOf, type TableCase } from "../case.ts";
import { type PlainKind, ProblemBuilder } from "../problem.ts";
import { Random } from "../random.ts";

/** A builder with `rows` live rows, either of the input or gathered ones. */
function builderOf(name: string, rows: number, symbol: DimSymbol): ProblemBuilder {
  const count = symbol === "rows" ? rows : 2 * rows;
  const outputs = symbol === "rows" ? [{ row: 0 }] : Array.from({ length: rows }, (_, i) => ({ row: 2 * i }));
  return new ProblemBuilder(
    new Random(seedOf(name)),
    Array.from({ length: count }, (_, position) => ({ position })),
    { outputs },
  );
}

interface NormDescription {
  rows: number;
  groups: number;
  group: number;
  weight: PlainKind | null;
  inScale?: number;
  magnitude?: number;
  eps?: number;
}

function normCase(d: NormDescription): TableCase {
  const { rows, groups, group, weight, inScale = 1, magnitude = 1, eps = 1e-3 } = d;
  const name = `rows=${rows} groups=${groups} of ${group} weight=${weight} inScale=${inScale} ` +
    `magnitude=${magnitude} eps=${eps}`;
  return {
    op: "rms_norm",
    name,
    tolerance: F32,
    variants: ["rms_norm"],
    work: 20 * rows * groups * group,
    build(exact) {
      const builder = builderOf(name, rows, "rows");
      const n = groups * group;
      const values = builder.random.normals(rows * n, 0.3 * magnitude, magnitude);
      const x = builder.activation("x", ["rows", n], values);
      const w = weight ? builder.vector("weight", group, weight) : undefined;
      const y = builder.output("y", ["rows", n]);
      return builder.finish({ kind: "rms_norm", x, weight: w, y, group, eps, inScale }, exact);
    },
  };
}

function addCase(
  rows: number,
  n: number,
  b: boolean,
  scalar: PlainKind | null,
  symbol: DimSymbol,
): TableCase {
  const name = `rows=${rows} n=${n} b=${b} scalar=${scalar} ${symbol}`;
  return {
    op: "add",
    name,
    tolerance: F32,
    variants: ["add"],
    work: 20 * rows * n,
    build(exact) {
      const builder = builderOf(name, rows, symbol);
      const term = (name: string) =>
        builder.activation(name, [symbol as "rows", n], builder.random.normals(rows * n, 0.5));
      return builder.finish({
        kind: "add",
        a: term("a"),
        b: b ? term("b") : undefined,
        scalar: scalar ? builder.vector("scalar", 1, scalar) : undefined,
        y: builder.output("y", [symbol as "rows", n]),
        aScale: 0.75,
        bScale: -1.5,
      }, exact);
    },
  };
}

function geluMulCase(rows: number, n: number, extra: number, column: number, magnitude = 1): TableCase {
  const name = `rows=${rows} n=${n} of ${n + extra} from ${column} magnitude=${magnitude}`;
  return {
    op: "gelu_mul",
    name,
    tolerance: F32,
    variants: ["gelu_mul"],
    work: 20 * rows * (n + extra),
    build(exact) {
      const builder = builderOf(name, rows, "rows");
      const { random } = builder;
      const a = builder.activation("a", ["rows", n], random.normals(rows * n, 0, 2 * magnitude));
      const b = builder.activation("b", ["rows", n + extra], random.normals(rows * (n + extra), 0.5));
      return builder.finish({ kind: "gelu_mul", a, b, column, y: builder.output("y", ["rows", n]) }, exact);
    },
  };
}

function softcapCase(name: string, rows: number, n: number, cap: number, values?: number[]): TableCase {
  return {
    op: "softcap",
    name,
    tolerance: F32,
    variants: ["softcap"],
    work: 20 * rows * n,
    build(exact) {
      const builder = builderOf(name, rows, "out_rows");
      const data = values ? Float64Array.from(values) : builder.random.normals(rows * n, 3, 40);
      const x = builder.activation("x", ["out_rows", n], data);
      return builder.finish({ kind: "softcap", x, y: builder.output("y", ["out_rows", n]), cap }, exact);
    },
  };
}

function ropeCase(
  positions: number[],
  heads: number,
  headDim: number,
  rotatedPairs: number,
  theta: number,
  positionScale = 1,
  positionOffset?: number,
): TableCase {
  const name =
    `positions ${positions.slice(0, 4).join(",")}${positions.length > 4 ? `… (${positions.length})` : ""} ` +
    `heads=${heads} d=${headDim} pairs=${rotatedPairs} theta=${theta} scale=${positionScale}` +
    (positionOffset === undefined ? "" : ` offset=${positionOffset}`);
  return {
    op: "rope",
    name,
    tolerance: F32,
    variants: ["rope"],
    work: 20 * positions.length * heads * headDim,
    build(exact) {
      const builder = new ProblemBuilder(
        new Random(seedOf(name)),
        positions.map((position) => ({ position })),
      );
      const n = heads * headDim;
      const x = builder.activation("x", ["rows", n], builder.random.normals(positions.length * n, 0.2));
      const rope = { theta, rotatedPairs, positionScale, positionOffset };
      return builder.finish(
        { kind: "rope", x, y: builder.output("y", ["rows", n]), heads, headDim, rope },
        exact,
      );
    },
  };
}

/** All cases of ops that work lane by lane or head by head. */
export function pointwiseCases(): TableCase[] {
  const range = (start: number, count: number) => Array.from({ length: count }, (_, i) => start + i);
  return [
    ...[1, 3, 65].flatMap((rows) =>
      [1, 2, 7, 33, 64, 100, 256].map((group) => normCase({ rows, groups: 3, group, weight: "bf16" }))
    ),
    ...([null, "f32", "bf16", "f16"] as const).flatMap((weight) => [
      normCase({ rows: 2, groups: 1, group: 2560, weight }),
      normCase({ rows: 5, groups: 10, group: 32, weight, inScale: 0.0254 }),
      normCase({ rows: 4, groups: 8, group: 512, weight }),
    ]),
    normCase({ rows: 3, groups: 2, group: 96, weight: "f32", magnitude: 7e4 }),
    normCase({ rows: 3, groups: 1, group: 1536, weight: null, magnitude: 1e6, eps: 1e-6 }),
    normCase({ rows: 3, groups: 2, group: 96, weight: "f32", magnitude: 1e-4, eps: 1e-6 }),
    normCase({ rows: 3, groups: 2, group: 96, weight: "f32", magnitude: 1e-3, eps: 1e-6 }),
    normCase({ rows: 2, groups: 2, group: 96, weight: "f32", magnitude: 1e-20, eps: 1e-6 }),
    ...[1, 3, 65].flatMap((rows) => [1, 7, 64, 100, 257].map((n) => addCase(rows, n, true, "bf16", "rows"))),
    ...([null, "f32", "f16"] as const).flatMap((scalar) => [
      addCase(4, 99, true, scalar, "rows"),
      addCase(4, 99, false, scalar, "out_rows"),
    ]),
    ...[1, 3, 65].flatMap((rows) => [1, 7, 64, 257].map((n) => geluMulCase(rows, n, 0, 0))),
    geluMulCase(5, 33, 70, 35),
    geluMulCase(2, 64, 64, 64),
    geluMulCase(2, 64, 640, 576),
    geluMulCase(3, 65, 0, 0, 50),
    geluMulCase(3, 65, 0, 0, 7e4),
    softcapCase("the stated values", 1, 4, 30, [0, 30, 124, -1e4]),
    softcapCase("small and huge values", 1, 8, 30, [1e-6, -1e-3, 0.5, 89, -1e30, 1e30, 3e38, -7e4]),
    ...[1, 3].flatMap((rows) =>
      [1, 33, 256, 1001].map((n) => softcapCase(`rows=${rows} n=${n}`, rows, n, 30))
    ),
    softcapCase("cap 50", 65, 64, 50),
    ropeCase([1000], 1, 512, 64, 1e6),
    ropeCase(range(0, 1), 2, 32, 16, 1e4),
    ropeCase(range(30, 5), 3, 64, 32, 1e4),
    ropeCase(range(500, 3), 8, 256, 128, 1e4),
    ropeCase(range(0, 65), 2, 128, 16, 1e6),
    ropeCase([0, 7, 511, 4096, 32767, 131071, 262143], 2, 256, 128, 1e4),
    ropeCase([0, 7, 511, 4096, 32767, 131071, 262143], 2, 512, 64, 1e6),
    ropeCase([5, 131071], 2, 256, 128, 1e6, 0.125),
    ropeCase([0, 5, 131071], 2, 64, 32, 1e4, 1, 1),
    ropeCase([0, 5, 131071], 2, 256, 32, 1e6, 0.125, 1),
    ropeCase([9, 10], 1, 2, 1, 1e4),
    ropeCase([9, 10], 4, 64, 0, 1e4),
  ];
}
