/** Cases of products with the weights of chosen experts, of their sum, and of the sum of two norms. */
import { expertVariants, rowKinds } from "../../schedule/variants.ts";
import type { DimSymbol, Tensor } from "../../schedule/tensor.ts";
import {
  BLOCK_FORMATS,
  F32,
  formatName,
  FORMATS,
  MAIN_FORMATS,
  PRODUCT,
  seedOf,
  type TableCase,
} from "../case.ts";
import { type PlainKind, type Problem, ProblemBuilder, type WeightFormat } from "../problem.ts";
import { Random } from "../random.ts";

/** What a case asks for. */
export interface ExpertDescription {
  op: "expert_gate_up" | "expert_down" | "expert_linear";
  rows: number;
  /** experts */ E: number;
  /** chosen by each row */ K: number;
  /** columns of a weight */ k: number;
  /** rows of a weight; of the gate alone */ n: number;
  /** two: gate and up apart */ format: WeightFormat | [WeightFormat, WeightFormat];
  preNorm?: boolean;
  /** expert_linear: x has a part for each slot */ eachSlot?: boolean;
  /** expert_linear: of the rows of a weight twice as high */ firstRow?: number;
  /** who is chosen; default random. `some`: of the first two experts; `missing`: every third id is no expert */
  choice?: "same" | "some" | "missing";
  /** x is about this large; default 1 */ magnitude?: number;
  /** leading rows of class decode; default: all if there are at most 16, else none */ decodeRows?: number;
  gathered?: boolean;
  /** rows that are built, in this order; default all (the data of a row does not depend on it) */
  pick?: number[];
}

/** The experts of each row. */
function choicesOf({ rows, E, K, choice }: ExpertDescription, random: Random): number[][] {
  return Array.from({ length: rows }, (_, r) => {
    const order = random.permutation(E);
    if (choice === "same") return Array.from({ length: K }, (_, s) => s);
    if (choice === "some") return Array.from({ length: K }, (_, s) => (s + r) % Math.max(2, K));
    if (choice === "missing") {
      return order.slice(0, K).map((id, s) => (r + s) % 3 === 0 ? [E, 0xffffffff][r % 2] : id);
    }
    return order.slice(0, K);
  });
}

/** Builds the problem of a description. */
export function expertProblem(d: ExpertDescription, seed: number, exact: boolean): Problem {
  const { rows, E, K, k, n, magnitude = 1, decodeRows = rows <= 16 ? rows : 0 } = d;
  const random = new Random(seed);
  const pick = d.pick ?? Array.from({ length: rows }, (_, i) => i);
  const symbol: DimSymbol = d.gathered ? "out_rows" : "rows";
  const inputs = d.gathered ? pick.flatMap((row) => [row, row]) : pick;
  const builder = new ProblemBuilder(
    random,
    inputs.map((row, position) => ({ position, rowClass: row < decodeRows ? "decode" : "prefill" })),
    { outputs: d.gathered ? pick.map((_, i) => ({ row: 2 * i + 1 })) : [{ row: 0 }] },
  );
  const picked = (values: Float64Array, width: number) =>
    Float64Array.from(
      { length: pick.length * width },
      (_, i) => values[pick[Math.floor(i / width)] * width + i % width],
    );
  const chosen = choicesOf(d, random);
  const experts = builder.ids("experts", [symbol, K], pick.flatMap((row) => chosen[row]));
  const parts = d.op === "expert_down" || d.eachSlot ? K : 1;
  const x = builder.activation(
    "x",
    [symbol, parts * k],
    picked(random.normals(rows * parts * k, 0.1 * magnitude, magnitude), parts * k),
  );
  const formats = Array.isArray(d.format) ? d.format : [d.format];
  if (d.op === "expert_gate_up") {
    const height = formats.length === 1 ? 2 * n : n;
    return builder.finish({
      kind: d.op,
      x,
      preNorm: d.preNorm ? builder.vector("pre_norm", k, "bf16", 0.8, 0.4) : undefined,
      experts,
      weights: formats.map((format, i) => builder.experts(`w${i}`, E, height, k, format)),
      y: builder.output("y", [symbol, K * n]),
      eps: 1e-3,
    }, exact);
  }
  if (d.op === "expert_linear") {
    const weight = builder.experts("w", E, d.firstRow === undefined ? n : 2 * n, k, formats[0]);
    const y = builder.output("y", [symbol, K * n]);
    return builder.finish({ kind: d.op, x, experts, weight, firstRow: d.firstRow ?? 0, y }, exact);
  }
  const weight = builder.experts("w", E, n, k, formats[0]);
  const shares = builder.activation("shares", [symbol, K], picked(random.normals(rows * K, 0.6, 0.2), K));
  return builder.finish(
    { kind: d.op, x, experts, shares, weight, y: builder.output("y", [symbol, n]) },
    exact,
  );
}

function name(d: ExpertDescription): string {
  const formats = Array.isArray(d.format) ? d.format.map(formatName).join("|") : formatName(d.format);
  const parts = [`${formats} rows=${d.rows} experts=${d.K}/${d.E} k=${d.k} n=${d.n}`];
  for (const key of ["preNorm", "eachSlot", "gathered"] as const) if (d[key]) parts.push(key);
  if (d.firstRow !== undefined) parts.push(`firstRow=${d.firstRow}`);
  if (d.choice) parts.push(d.choice);
  if (d.magnitude !== undefined) parts.push(`magnitude=${d.magnitude}`);
  if (d.decodeRows !== undefined) parts.push(`decode=${d.decodeRows}`);
  return parts.join(" ");
}

function expertCase(d: ExpertDescription): TableCase {
  const { rows, decodeRows = rows <= 16 ? rows : 0 } = d;
  const formats = Array.isArray(d.format) ? d.format : [d.format];
  return {
    op: d.op,
    name: name(d),
    variants: expertVariants(d.op, formats, rowKinds(decodeRows, rows - decodeRows)),
    work: rows * d.K * d.k * d.n * (d.op === "expert_gate_up" ? 2 : 1),
    tolerance: PRODUCT,
    build: (exact) => expertProblem(d, seedOf(name(d)), exact),
  };
}

function sumCase(rows: number, n: number, K: number): TableCase {
  const title = `rows=${rows} n=${n} slots=${K}`;
  return {
    op: "expert_sum",
    name: title,
    tolerance: F32,
    variants: ["expert_sum"],
    work: 20 * rows * n * K,
    build(exact) {
      const random = new Random(seedOf(title));
      const builder = new ProblemBuilder(
        random,
        Array.from({ length: rows }, (_, position) => ({ position })),
      );
      const x = builder.activation("x", ["rows", K * n], random.normals(rows * K * n, 0.4));
      const shares = builder.activation("shares", ["rows", K], random.normals(rows * K, 0.6, 0.2));
      return builder.finish(
        { kind: "expert_sum", x, shares, y: builder.output("y", ["rows", n]) },
        exact,
      );
    },
  };
}

function addNormsCase(rows: number, n: number, norms: PlainKind, magnitude = 1): TableCase {
  const title = `rows=${rows} n=${n} norms=${norms} magnitude=${magnitude}`;
  return {
    op: "add_norms",
    name: title,
    tolerance: F32,
    variants: ["add_norms"],
    work: 20 * rows * n,
    build(exact) {
      const random = new Random(seedOf(title));
      const builder = new ProblemBuilder(
        random,
        Array.from({ length: rows }, (_, position) => ({ position })),
      );
      const term = (name: string): Tensor =>
        builder.activation(name, ["rows", n], random.normals(rows * n, 0.3 * magnitude, magnitude));
      return builder.finish({
        kind: "add_norms",
        a: term("a"),
        aNorm: builder.vector("a_norm", n, norms, 0.9, 0.1),
        b: term("b"),
        bNorm: builder.vector("b_norm", n, norms, 1.6, 0.1),
        y: builder.output("y", ["rows", n]),
        eps: 1e-3,
      }, exact);
    },
  };
}

/** All cases of the experts' ops. */
export function expertCases(): TableCase[] {
  const affine4: WeightFormat = { kind: "affine", bits: 4, group: 64, scales: "bf16" };
  const affine6: WeightFormat = { kind: "affine", bits: 6, group: 32, scales: "bf16" };
  const bf16: WeightFormat = { kind: "bf16" };
  const list: ExpertDescription[] = [];
  for (const op of ["expert_gate_up", "expert_down", "expert_linear"] as const) {
    const small = { op, E: 5, K: 2, k: 128, n: 36 };
    const pair = (format: WeightFormat): ExpertDescription["format"] =>
      op === "expert_gate_up" ? [format, format] : format;
    for (const format of FORMATS) {
      for (const rows of [1, 2, 4, 8, 65]) list.push({ ...small, rows, format: pair(format) });
      list.push({ ...small, rows: 6, format: pair(format), decodeRows: 0 });
    }
    for (const format of MAIN_FORMATS) {
      for (const rows of [3, 16, 17, 33, 63, 64, 130]) list.push({ ...small, rows, format: pair(format) });
      for (const choice of ["same", "some", "missing"] as const) {
        for (const rows of [1, 9, 40]) list.push({ ...small, rows, format, choice });
      }
      // beyond half's range on every path
      for (const rows of [1, 8, 63, 65]) list.push({ ...small, rows, format, magnitude: 7e4 });
      list.push({ ...small, rows: 23, format, decodeRows: 5 });
      list.push({ ...small, rows: 5, format, gathered: true });
      list.push({ ...small, rows: 3, E: 17, K: 8, format });
      list.push({ ...small, rows: 3, E: 1, K: 1, format });
      list.push({ ...small, rows: 7, E: 3, K: 3, format });
    }
    for (const format of BLOCK_FORMATS) {
      const few = { op, E: 3, K: 2, k: 256, n: 36, format: pair(format) };
      for (const rows of op === "expert_linear" ? [2, 40] : [1, 2, 4, 8, 40]) list.push({ ...few, rows });
      if (op !== "expert_linear") list.push({ ...few, rows: 6, decodeRows: 0 });
    }
    for (const format of [bf16, affine4]) {
      for (const n of [1, 2, 7, 16, 65, 130]) {
        for (const rows of [1, 20]) list.push({ ...small, n, rows, format });
      }
    }
    for (const k of [1, 3, 33, 700]) list.push({ ...small, k, rows: 5, format: bf16 });
    // the sizes of the published model, few experts
    list.push({ op, rows: 1, E: 12, K: 8, k: 704, n: 704, format: affine4 });
    // rows and slots that decode kernels do not hold
    for (const format of [bf16, affine4]) {
      const long = op === "expert_down" ? 5120 : 3200;
      for (const rows of [1, 3]) list.push({ op, rows, E: 3, K: 2, k: long, n: 7, format });
      list.push({ op, rows: 2, E: 35, K: 33, k: 64, n: 7, format });
    }
    // more pairs than a 16-bit number counts
    for (const rows of [32767, 32768, 32800, 40002]) {
      list.push({ op, rows, E: 3, K: 2, k: 4, n: 2, format: { kind: "f32" } });
    }
    list.push({ op, rows: 32800, E: 3, K: 2, k: 32, n: 2, format: affine6 });
    list.push({ op, rows: 32800, E: 3, K: 1, k: 4, n: 2, format: { kind: "f32" } });
  }
  const gate = { op: "expert_gate_up", E: 5, K: 2, k: 128, n: 36 } as const;
  for (const rows of [1, 20]) {
    for (const format of [bf16, affine4]) {
      list.push({ ...gate, rows, format, preNorm: true });
      list.push({ ...gate, rows, format: [format, format], preNorm: true });
    }
    list.push({ ...gate, rows, format: [affine4, affine6], preNorm: true });
    list.push({ ...gate, rows, format: [bf16, affine4] });
    for (const format of [bf16, affine4]) {
      const linear = { ...gate, op: "expert_linear", rows, format } as const;
      list.push({ ...linear, eachSlot: true }, { ...linear, firstRow: 36 }, { ...linear, firstRow: 5 });
    }
  }
  return [
    ...list.map(expertCase),
    ...[1, 3, 65].flatMap((rows) => [1, 33, 256].map((n) => sumCase(rows, n, 3))),
    ...[1, 2, 8].map((K) => sumCase(2, 100, K)),
    sumCase(32800, 2, 2),
    ...[1, 3, 65].flatMap((rows) => [1, 33, 256].map((n) => addNormsCase(rows, n, "bf16"))),
    addNormsCase(2, 2816, "f32"),
    addNormsCase(2, 96, "f16", 7e4),
    addNormsCase(2, 96, "bf16", 1e-3),
    addNormsCase(32800, 3, "bf16"),
  ];
}
