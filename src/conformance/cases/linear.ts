/** Cases of the fused matrix product. */
import type { Epilogue } from "../../schedule/ops.ts";
import type { DimSymbol, Tensor } from "../../schedule/tensor.ts";
import { linearVariants, rowKinds } from "../../schedule/variants.ts";
import {
  BLOCK_FORMATS,
  blockColumns,
  formatName,
  FORMATS,
  MAIN_FORMATS,
  PRODUCT,
  seedOf,
  type TableCase,
} from "../case.ts";
import { fromBf16, toBf16 } from "../oracle/numbers.ts";
import { readRow } from "../oracle/weights.ts";
import {
  type PlainKind,
  type Problem,
  ProblemBuilder,
  type ProblemRow,
  type WeightFormat,
} from "../problem.ts";
import { Random } from "../random.ts";

/** What a linear case asks for; whatever is left out is absent or plain. */
export interface LinearDescription {
  rows: number;
  k: number;
  /** outputs of each matrix */ n: number[];
  /** one for all matrices, or one each */ format: WeightFormat | WeightFormat[];
  residual?: boolean;
  postNorm?: boolean;
  scalar?: boolean;
  hOut?: boolean;
  preNorm?: boolean;
  /** which matrices have one */ biases?: boolean[];
  epilogue?: "geglu" | "gelu_mul" | "softcap";
  /** storage of norms, scalar and biases */ vectors?: PlainKind;
  /** x is about this large; default 1 */ magnitude?: number;
  /**
   * "zero": every second row of x is zero; "outlier": one lane is 300 times the others; "aligned": the first column of y is a
   * sum of mostly positive products; "short": x has 8 significant bits
   */
  data?: "zero" | "outlier" | "aligned" | "short";
  /** leading rows of class decode; default: all if there are at most 16, else none */ decodeRows?: number;
  /** the op runs on gathered rows */ gathered?: boolean;
  /** rows that are built, in this order; default all (the data of a row does not depend on it) */
  pick?: number[];
}

/** Builds the problem of a description. */
export function linearProblem(d: LinearDescription, seed: number, exact: boolean): Problem {
  const random = new Random(seed);
  const { rows, k, n, magnitude = 1, vectors = "bf16", decodeRows = rows <= 16 ? rows : 0 } = d;
  const pick = d.pick ?? Array.from({ length: rows }, (_, i) => i);
  const symbol: DimSymbol = d.gathered ? "out_rows" : "rows";
  const classes = (row: number): ProblemRow => ({
    position: row,
    rowClass: row < decodeRows ? "decode" : "prefill",
  });
  // gathered: every second input row produces output
  const inputRows = d.gathered ? pick.flatMap((row) => [row, row]) : pick;
  const builder = new ProblemBuilder(
    random,
    inputRows.map(classes).map((row, i) => ({ ...row, position: i })),
    {
      outputs: d.gathered ? pick.map((_, i) => ({ row: 2 * i + 1 })) : [{ row: 0 }],
    },
  );
  const activation = (name: string, width: number, values: Float64Array) =>
    builder.activation(
      name,
      [symbol, width],
      Float64Array.from({ length: pick.length * width }, (_, i) =>
        values[pick[Math.floor(i / width)] * width + i % width]),
    );

  const xValues = random.normals(rows * k, 0.1 * magnitude, magnitude);
  if (d.data === "zero") xValues.forEach((_, i) => i / k & 1 && (xValues[i] = 0));
  if (d.data === "outlier") xValues.forEach((_, i) => i % k === 5 % k && (xValues[i] *= 300));
  if (d.data === "short") xValues.forEach((v, i) => xValues[i] = fromBf16(toBf16(v)));
  const x = activation("x", k, xValues);
  const residual = d.residual
    ? activation("residual", k, random.normals(rows * k, -0.2 * magnitude, magnitude))
    : undefined;
  const postNorm = d.postNorm ? builder.vector("post_norm", k, vectors, 1.3, 0.5) : undefined;
  const scalar = d.scalar ? builder.vector("scalar", 1, vectors, 0.6, 0.1) : undefined;
  const preNorm = d.preNorm ? builder.vector("pre_norm", k, vectors, 0.8, 0.4) : undefined;
  const formats = Array.isArray(d.format) ? d.format : n.map(() => d.format as WeightFormat);
  const weights = n.map((size, i) => builder.matrix(`w${i}`, size, k, formats[i]));
  const biases = d.biases?.map((has, i) =>
    has ? builder.vector(`bias${i}`, n[i], vectors, 0.3, 0.5) : undefined
  );
  const hOut = d.hOut ? builder.output("h", [symbol, k]) : undefined;
  let epilogue: Epilogue = { kind: "none" };
  if (d.epilogue === "geglu") epilogue = { kind: "geglu" };
  if (d.epilogue === "softcap") epilogue = { kind: "softcap", cap: 1.5 };
  if (d.epilogue === "gelu_mul") {
    const width = 3 * n[0] + 5;
    const other = activation("other", width, random.normals(rows * width, 0.4));
    epilogue = { kind: "gelu_mul", other, column: n[0] + 2 };
  }
  const width = d.epilogue ? n[0] : n.reduce((a, b) => a + b, 0);
  const y = builder.output("y", [symbol, width]);
  const problem = builder.finish({
    kind: "linear",
    x,
    residual,
    postNorm,
    scalar,
    hOut,
    preNorm,
    weights,
    biases,
    epilogue,
    y,
    eps: 1e-3,
  }, exact);
  if (d.data === "aligned") alignSigns(x, pick.length, weights, problem);
  return problem;
}

/**
 * Gives x the signs of the weights' first rows. Where y has one column, it would else be the small difference of large sums
 * for some seeds, and its relative error would say nothing about the device.
 */
function alignSigns(x: Tensor, rows: number, weights: readonly Tensor[], problem: Problem): void {
  const { plan: { limits }, buffers } = problem;
  const first = weights.map((weight) => readRow(weight, 0, buffers, limits));
  const k = first[0].length;
  const view = new DataView(buffers[x.buffer].buffer, x.offset);
  for (let i = 0; i < rows * k; i++) {
    const positive = first.reduce((sum, row) => sum + row[i % k], 0) >= 0;
    view.setFloat32(4 * i, Math.abs(view.getFloat32(4 * i, true)) * (positive ? 1 : -1), true);
  }
}

function name(d: LinearDescription): string {
  const formats = Array.isArray(d.format) ? d.format.map(formatName).join("|") : formatName(d.format);
  const parts = [`${formats} rows=${d.rows} k=${d.k} n=${d.n.join("+")}`];
  for (const key of ["residual", "postNorm", "scalar", "hOut", "preNorm", "gathered"] as const) {
    if (d[key]) parts.push(key);
  }
  if (d.biases) parts.push(`biases=${d.biases.map(Number).join("")}`);
  if (d.vectors) parts.push(`vectors=${d.vectors}`);
  if (d.magnitude) parts.push(`magnitude=${d.magnitude}`);
  if (d.decodeRows !== undefined) parts.push(`decode=${d.decodeRows}`);
  for (const word of [d.epilogue, d.data]) if (word) parts.push(word);
  return parts.join(" ");
}

function variantsOf(d: LinearDescription): string[] {
  const { rows, decodeRows = rows <= 16 ? rows : 0, epilogue = "none" } = d;
  const formats = Array.isArray(d.format) ? d.format : d.n.map(() => d.format as WeightFormat);
  return linearVariants({ ...d, formats, epilogue }, rowKinds(decodeRows, rows - decodeRows));
}

/** All linear cases. */
export function linearCases(): TableCase[] {
  const affine4: WeightFormat = { kind: "affine", bits: 4, group: 64, scales: "bf16" };
  const affine6: WeightFormat = { kind: "affine", bits: 6, group: 32, scales: "bf16" };
  const affine8: WeightFormat = { kind: "affine", bits: 8, group: 64, scales: "bf16" };
  const bf16: WeightFormat = { kind: "bf16" };
  const list: LinearDescription[] = [];

  for (const format of FORMATS) {
    for (const rows of [1, 4, 65]) list.push({ rows, k: 384, n: [37], format });
    // rows so long that other threadgroups may make them ready
    list.push({ rows: 1, k: 3328, n: [37], format });
    list.push({ rows: 1, k: 3328, n: [37], format, preNorm: true });
    // the remaining kernels of a format
    for (const rows of [2, 8]) list.push({ rows, k: 384, n: [37], format });
    list.push({ rows: 6, k: 384, n: [37], format, decodeRows: 0 });
  }
  for (const format of MAIN_FORMATS) {
    for (const rows of [2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 130]) {
      list.push({ rows, k: 256, n: [34], format });
    }
    // beyond half's range on every path
    for (const rows of [1, 8, 63, 64, 65]) list.push({ rows, k: 256, n: [40], format, magnitude: 7e4 });
    for (const rows of [3, 20]) {
      list.push({ rows, k: 128, n: [33], format, magnitude: 1e-6 });
      list.push({ rows, k: 128, n: [33], format, data: "zero" });
      list.push({ rows, k: 128, n: [33], format, data: "outlier" });
    }
  }
  for (const format of [bf16, affine4, affine6]) {
    for (const n of [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 515]) {
      for (const rows of [1, 20]) list.push({ rows, k: 192, n: [n], format });
    }
  }
  for (const kind of ["f32", "bf16", "f16"] as const) {
    for (const k of [1, 2, 3, 7, 8, 31, 33, 100, 2560, 4100]) {
      for (const rows of [1, 20]) list.push({ rows, k, n: [19], format: { kind } });
    }
  }
  for (const bits of [3, 4, 8] as const) {
    for (
      const [group, counts] of [[32, [1, 3, 5, 7, 33, 80]], [64, [1, 3, 41]], [128, [1, 3, 21]]] as const
    ) {
      for (const count of counts) {
        for (const rows of [1, 20]) {
          list.push({
            rows,
            k: group * count,
            n: [19],
            format: { kind: "affine", bits, group, scales: "bf16" },
          });
        }
      }
    }
  }
  for (const format of [bf16, affine4]) {
    for (const rows of [1, 16, 19]) {
      const base = { rows, k: 192, n: [45], format };
      const residual = { ...base, residual: true };
      const all = { ...residual, postNorm: true, scalar: true, hOut: true, preNorm: true };
      list.push(
        { ...base, preNorm: true },
        { ...base, hOut: true },
        residual,
        { ...residual, hOut: true },
        { ...residual, scalar: true, hOut: true },
        { ...residual, postNorm: true },
        { ...residual, postNorm: true, scalar: true, hOut: true },
        { ...residual, postNorm: true, preNorm: true, hOut: true },
        all,
        { ...all, vectors: "f32" },
        { ...all, vectors: "f16" },
        { ...all, magnitude: 7e4 },
        { ...all, n: [45, 45], epilogue: "geglu" },
        { ...all, epilogue: "gelu_mul" },
        { ...all, epilogue: "softcap" },
        { ...all, n: [64, 16, 33], biases: [true, true, true] },
        { ...all, gathered: true },
        { ...base, n: [45, 45], epilogue: "geglu", preNorm: true },
        { ...base, n: [1, 1], epilogue: "geglu", data: "aligned" },
        { ...base, n: [129, 129], epilogue: "geglu" },
        { ...base, n: [45, 45], epilogue: "geglu", biases: [true, true] },
        { ...base, n: [1], epilogue: "gelu_mul", data: "aligned" },
        { ...base, epilogue: "gelu_mul", biases: [true] },
        { ...base, n: [300], epilogue: "softcap", preNorm: true },
        { ...base, epilogue: "softcap", biases: [true], vectors: "f16" },
        { ...base, biases: [true], vectors: "f32" },
        { ...base, n: [64, 16, 16] },
        { ...base, n: [33, 1, 7], preNorm: true },
        { ...base, n: [33, 1, 7], biases: [false, true, false] },
        { ...base, n: [20, 9] },
        { ...base, n: [20, 9], gathered: true, epilogue: undefined },
        { ...base, n: [45, 45], gathered: true, epilogue: "geglu" },
        { ...base, gathered: true, epilogue: "gelu_mul" },
      );
    }
    list.push(
      { rows: 23, k: 192, n: [45], format, decodeRows: 3 },
      { rows: 23, k: 192, n: [45, 45], format, decodeRows: 16, epilogue: "geglu", preNorm: true },
      { rows: 5, k: 192, n: [45], format, decodeRows: 0 },
    );
  }
  // Rows that are longer than what threads hold of them.
  for (const [rows, k] of [[1, 3200], [2, 3200], [1, 6400], [17, 3200], [17, 12544]]) {
    const base = { rows, k, n: [9], format: affine4 };
    list.push(base, {
      ...base,
      residual: true,
      postNorm: true,
      scalar: true,
      hOut: true,
      preNorm: true,
    });
  }
  for (const rows of [1, 16, 19]) {
    list.push({ rows, k: 192, n: [40, 24, 24], format: [affine4, affine6, affine8], preNorm: true });
    list.push({ rows, k: 192, n: [40, 24, 24], format: [bf16, affine4, { kind: "f16" }], preNorm: true });
    list.push({ rows, k: 192, n: [40, 40], format: [affine6, affine4], epilogue: "geglu" });
  }
  for (const rows of [1, 2, 5]) {
    // rows that the threads of a large threadgroup hold, and rows that they do not
    for (const k of [5376, 6400]) {
      const everything = { residual: true, postNorm: true, scalar: true, hOut: true, preNorm: true };
      list.push({ rows, k, n: [40, 24, 24], format: affine4, ...everything });
      list.push({ rows, k, n: [37], format: bf16, ...everything, vectors: "f32" });
    }
  }
  for (const format of BLOCK_FORMATS) {
    for (const rows of [1, 2, 4, 8, 65]) list.push({ rows, k: 512, n: [37], format });
    list.push({ rows: 6, k: 512, n: [37], format, decodeRows: 0 });
    list.push({ rows: 1, k: 768, n: [5], format, magnitude: 7e4 });
    list.push({ rows: 19, k: 256, n: [45, 45], format, decodeRows: 3, epilogue: "geglu", preNorm: true });
    if (blockColumns(format) === 256) continue;
    for (const rows of [1, 17]) list.push({ rows, k: 96, n: [19], format });
    // GPU kernels take 32 columns at once
    if (format.kind === "nvfp4") { for (const rows of [1, 17]) list.push({ rows, k: 48, n: [19], format }); }
  }
  const q4: WeightFormat = { kind: "gguf", type: "q4_k" };
  const q6: WeightFormat = { kind: "gguf", type: "q6_k" };
  for (const rows of [1, 3, 18]) {
    list.push({ rows, k: 256, n: [40, 24, 24], format: [q4, q4, q6], preNorm: true });
    list.push({ rows, k: 256, n: [24, 24], format: [q6, affine4], epilogue: "geglu" });
  }
  // Whole bands of rows, which the CPU device interleaves.
  const banded: LinearDescription[] = [];
  for (const format of [...FORMATS, ...BLOCK_FORMATS]) {
    if (blockColumns(format) === 1) continue; // plain
    const k = blockColumns(format) === 256 ? 768 : 640;
    for (const rows of [1, 2, 7]) banded.push({ rows, k, n: [48], format });
    banded.push({ rows: 19, k, n: [80, 80], format, decodeRows: 3, epilogue: "geglu", preNorm: true });
    banded.push({ rows: 20, k, n: [32], format, data: "outlier" });
    banded.push({ rows: 1, k, n: [32], format, magnitude: 7e4 });
  }
  for (const rows of [1, 18]) {
    const base = { rows, k: 256, preNorm: true };
    banded.push({ ...base, n: [48, 32, 16], format: [q4, q6, q4] });
    banded.push({ ...base, n: [48, 33], format: [q4, affine4] }); // the second lies where it is
    banded.push({ ...base, n: [64], format: affine8, biases: [true], epilogue: "softcap" });
  }
  return [...list, ...banded].map((d) => ({
    op: "linear",
    name: name(d),
    variants: variantsOf(d),
    work: d.rows * d.k * d.n.reduce((a, b) => a + b, 0),
    tolerance: PRODUCT,
    interleaved: banded.includes(d),
    cpuOnly: blockColumns(Array.isArray(d.format) ? d.format[0] : d.format) === 16 && d.k % 32 !== 0,
    build: (exact) => linearProblem(d, seedOf(name(d)), exact),
  }));
}
