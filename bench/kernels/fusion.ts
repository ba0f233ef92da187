/** Fused ops beside the elementary ops that they stand for, on the same data. */
import type { Op } from "../../src/schedule/ops.ts";
import type { Tensor } from "../../src/schedule/tensor.ts";
import { shapes } from "../synthetic.ts";
import type { KernelCase } from "./cases.ts";

/** One fusion: the same result by one op and by several. */
export interface FusionCase {
  name: string;
  fused: KernelCase;
  elementary: KernelCase;
}

const GROUP = 64;
const VOCABULARY = 16384;

/** The fusions of the schedule, with a model's sizes and 4-bit weights. */
export function fusionCases(shape: string, rows: number): FusionCase[] {
  const { hidden: H, mlp: M, layers, perLayer: P } = shapes[shape];
  const eps = 1e-6;
  const activation = (name: string, width: number): Tensor => ({
    name,
    format: { kind: "f32" },
    shape: ["rows", width],
    buffer: 0,
    offset: 0,
  });
  const vector = (name: string, width: number): Tensor => ({
    name,
    format: { kind: "bf16" },
    shape: [width],
    buffer: 1,
    offset: 0,
  });
  const matrix = (name: string, n: number, k: number): Tensor => {
    const part = (what: string) => ({ ...vector(`${name}.${what}`, 1), shape: [n, k / GROUP] });
    return {
      ...vector(name, 1),
      format: { kind: "affine", bits: 4, group: GROUP },
      shape: [n, k],
      scales: part("scales"),
      biases: part("biases"),
    };
  };
  const of = (name: string, fused: Op[], elementary: Op[]): FusionCase => {
    const common = { name, rows, context: rows, groups: 0, pages: 1, vocabulary: VOCABULARY };
    return { name, fused: { ...common, ops: fused }, elementary: { ...common, ops: elementary } };
  };
  const norm = (x: Tensor, y: Tensor, weight: Tensor, group: number): Op => ({
    kind: "rms_norm",
    x,
    weight,
    y,
    group,
    eps,
    inScale: 1,
  });
  const none = { kind: "none" } as const;

  const table = matrix("table", VOCABULARY, H);
  const embedded = activation("embedded", H);
  const scaled = activation("scaled", H);
  const scale = Math.sqrt(H);

  const [x, residual, h, u] = ["x", "residual", "h", "u"].map((name) => activation(name, H));
  const [normed, gate, projected] = [activation("normed", H), matrix("w", H, H), activation("y", H)];
  const [post, pre] = [vector("post", H), vector("pre", H)];

  const [w0, w1] = [matrix("gate", M, H), matrix("up", M, H)];
  const [both, mlp] = [activation("both", 2 * M), activation("mlp", M)];
  const [onlyGate, onlyUp] = [activation("only_gate", M), activation("only_up", M)];

  const cases = [
    of("embedding: dequantise + scale", [{ kind: "embed", table, y: scaled, scale }], [
      { kind: "embed", table, y: embedded, scale: 1 },
      { kind: "add", a: embedded, y: scaled, aScale: scale, bScale: 0 },
    ]),
    of("norm + residual + norm + product", [
      {
        kind: "linear",
        x,
        residual,
        postNorm: post,
        hOut: h,
        preNorm: pre,
        weights: [gate],
        epilogue: none,
        y: projected,
        eps,
      },
    ], [
      norm(x, normed, post, H),
      { kind: "add", a: residual, b: normed, y: h, aScale: 1, bScale: 1 },
      norm(h, u, pre, H),
      { kind: "linear", x: u, weights: [gate], epilogue: none, y: projected, eps },
    ]),
    of("norm + residual + norm + gate and up + GELU", [
      {
        kind: "linear",
        x,
        residual,
        postNorm: post,
        hOut: h,
        preNorm: pre,
        weights: [w0, w1],
        epilogue: { kind: "geglu" },
        y: mlp,
        eps,
      },
    ], [
      norm(x, normed, post, H),
      { kind: "add", a: residual, b: normed, y: h, aScale: 1, bScale: 1 },
      norm(h, u, pre, H),
      { kind: "linear", x: u, weights: [w0], epilogue: none, y: onlyGate, eps },
      { kind: "linear", x: u, weights: [w1], epilogue: none, y: onlyUp, eps },
      { kind: "gelu_mul", a: onlyGate, b: onlyUp, column: 0, y: mlp },
    ]),
    of("gate and up side by side + GELU", [
      { kind: "linear", x, weights: [w0, w1], epilogue: { kind: "geglu" }, y: mlp, eps },
    ], [
      { kind: "linear", x, weights: [w0, w1], epilogue: none, y: both, eps },
      // the other half is read in place
      { kind: "gelu_mul", a: onlyGate, b: both, column: M, y: mlp },
    ]),
  ];
  if (P === 0) return cases;
  const width = layers * P;
  const perLayerTable = matrix("per_layer_table", VOCABULARY, width);
  const [looked, slices, inputs] = ["looked", "slices", "inputs"].map((name) => activation(name, width));
  const perLayerProjected = activation("per_layer_projected", width);
  const sliceNorm = vector("slice_norm", P);
  const [projectionScale, tableScale, outScale] = [H ** -0.5, P ** 0.5, 2 ** -0.5];
  const other = activation("per_layer_inputs", width);
  const [down, perLayerGate, gated] = [
    matrix("gate_w", P, H),
    activation("raw_gate", P),
    activation("gated", P),
  ];
  return [
    ...cases,
    of(`PLE norms of all ${layers} layers: norm + table + add`, [
      {
        kind: "per_layer_inputs",
        projected: perLayerProjected,
        table: perLayerTable,
        norm: sliceNorm,
        y: inputs,
        slice: P,
        eps,
        projectionScale,
        tableScale,
        outScale,
      },
    ], [
      {
        kind: "rms_norm",
        x: perLayerProjected,
        weight: sliceNorm,
        y: slices,
        group: P,
        eps,
        inScale: projectionScale,
      },
      { kind: "embed", table: perLayerTable, y: looked, scale: tableScale },
      { kind: "add", a: slices, b: looked, y: inputs, aScale: outScale, bScale: outScale },
    ]),
    of("PLE gate + GELU · per-layer input", [
      {
        kind: "linear",
        x,
        weights: [down],
        epilogue: { kind: "gelu_mul", other, column: 3 * P },
        y: gated,
        eps,
      },
    ], [
      { kind: "linear", x, weights: [down], epilogue: none, y: perLayerGate, eps },
      { kind: "gelu_mul", a: perLayerGate, b: other, column: 3 * P, y: gated },
    ]),
  ];
}
