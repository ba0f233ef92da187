/** Cases of the ops of vision and audio towers. */
import type { LinearOp, Op } from "../../schedule/ops.ts";
import { linearVariants, rowKinds, towerAttentionVariants } from "../../schedule/variants.ts";
import { F32, HALF_IF_FAST, MAIN_FORMATS, PRODUCT, seedOf, type TableCase, type Tolerance } from "../case.ts";
import { type PlainKind, ProblemBuilder } from "../problem.ts";
import { Random } from "../random.ts";

/** Builds the op of a case. */
type Build = (builder: ProblemBuilder, random: Random) => Op;

function towerCase(
  op: Op["kind"],
  name: string,
  rows: number,
  work: number,
  tolerance: Tolerance,
  build: Build,
  outputs = 1,
  decode = false,
): TableCase {
  return {
    op,
    name,
    tolerance,
    variants: [op],
    work,
    build(exact) {
      const builder = new ProblemBuilder(
        new Random(seedOf(name)),
        Array.from(
          { length: rows },
          (_, position) => ({ position, rowClass: decode ? "decode" : "prefill" }),
        ),
        { outputs: Array.from({ length: outputs }, (_, row) => ({ row })) },
      );
      return builder.finish(build(builder, builder.random), exact);
    },
  };
}

function addPositionsCase(rows: number, n: number, kind: PlainKind, interleaved: boolean): TableCase {
  const name = `rows=${rows} n=${n} ${kind}${interleaved ? " interleaved" : ""}`;
  return towerCase("add_positions", name, rows, 30 * rows * n, F32, (builder, random) => {
    const count = 9;
    // one position of each axis is beyond the table
    const positions = Array.from(
      { length: 2 * rows },
      (_, i) => i === 3 ? 0xffffffff : random.integer(count),
    );
    positions[0] = count;
    return {
      kind: "add_positions",
      x: builder.activation("x", ["rows", n], random.normals(rows * n)),
      table: builder.plain("table", [2 * count, n], kind, random.normals(2 * count * n)),
      positions: builder.ids("positions", ["rows", 2], positions),
      y: builder.output("y", ["rows", n]),
      count,
      ...(interleaved ? { step: 2, second: 1 } : { step: 1, second: count }),
    };
  });
}

function patchAttentionCase(
  rows: number,
  heads: number,
  kvHeads: number,
  headDim: number,
  peak = 1,
): TableCase {
  const name = `rows=${rows} heads=${heads}/${kvHeads} d=${headDim}${peak === 1 ? "" : ` peak=${peak}`}`;
  const work = 4 * rows * rows * heads * headDim;
  const variants = towerAttentionVariants({ kind: "patch_attention", headDim });
  const built = towerCase("patch_attention", name, rows, work, HALF_IF_FAST, (builder, random) => {
    const part = (name: string, count: number) =>
      builder.activation(name, ["rows", count * headDim], random.normals(rows * count * headDim, 0.1, 3));
    const columns = Math.ceil(Math.sqrt(rows));
    const size = Math.SQRT2 / headDim ** 0.25;
    return {
      kind: "patch_attention",
      q: part("q", heads),
      k: part("k", kvHeads),
      v: part("v", kvHeads),
      qNorm: builder.vector("q_norm", headDim, "bf16", size * peak, 0.3 * size),
      kNorm: builder.vector("k_norm", headDim, "f32", size, 0.3 * size),
      positions: builder.ids(
        "positions",
        ["rows", 2],
        Array.from({ length: rows }, (_, i) => [i % columns, Math.floor(i / columns)]).flat(),
      ),
      y: builder.output("y", ["rows", heads * headDim]),
      heads,
      kvHeads,
      headDim,
      theta: 100,
      eps: 1e-6,
      scoreScale: 1,
    };
  });
  return { ...built, variants };
}

function poolCase(rows: number, cells: number, m: number, n: number, standardize: boolean): TableCase {
  const name = `rows=${rows} cells=${cells} of ${m} n=${n}${standardize ? " standardize" : ""}`;
  return towerCase("pool", name, rows, 20 * rows * n, F32, (builder, random) => {
    const members = Array.from({ length: cells * m }, (_, i) => i === 1 ? rows : random.integer(rows));
    return {
      kind: "pool",
      x: builder.activation("x", ["rows", n], random.normals(rows * n, 0.3)),
      members: builder.ids("members", ["out_rows", m], members),
      bias: standardize ? builder.vector("bias", n, "bf16", 0.2, 1) : undefined,
      scale: standardize ? builder.vector("scale", n, "f16", 1.2, 0.3) : undefined,
      y: builder.output("y", ["out_rows", n]),
      factor: 27.7 / m,
    };
  }, cells);
}

function subsampleCase(
  frames: number,
  bins: number,
  channels: number,
  outputs: number,
  paired: boolean,
  channelsLast: boolean,
): TableCase {
  const name = `frames=${frames} bins=${bins} channels=${channels}->${outputs}` +
    `${paired ? " paired" : ""}${channelsLast ? " channels last" : ""}`;
  const work = 9 * frames * bins * channels * outputs / 4;
  const rows = paired ? Math.ceil(frames / 2) : frames;
  const outRows = paired ? 1 : Math.ceil(frames / 2);
  return towerCase("subsample", name, rows, work, PRODUCT, (builder, random) => {
    const framesPerRow = paired ? 2 : 1;
    const width = framesPerRow * bins * channels;
    const valid = Array.from({ length: rows * framesPerRow }, (_, t) => t < frames - 2 && t !== 1 ? 1 : 0);
    return {
      kind: "subsample",
      x: builder.activation("x", ["rows", width], random.normals(rows * width, 0.2)),
      valid: builder.ids("valid", ["rows", framesPerRow], valid),
      weight: builder.matrix("w", outputs, 9 * channels, { kind: channelsLast ? "bf16" : "f16" }),
      norm: builder.vector("norm", outputs, "bf16", 1, 0.3),
      y: builder.output("y", [paired ? "rows" : "out_rows", bins / 2 * outputs]),
      bins,
      framesPerRow,
      channelsLast,
      eps: 1e-4,
    };
  }, outRows);
}

interface LocalDescription {
  rows: number;
  heads: number;
  headDim: number;
  left?: number;
  right?: number;
  shift?: number;
  /** rows that are valid; default all */ valid?: (row: number) => boolean;
  /** out_rows instead of rows */ gathered?: boolean;
}

function localAttentionCase(what: string, d: LocalDescription): TableCase {
  const { rows, heads, headDim, left = 12, right = 0, shift = 0, valid = () => true } = d;
  const symbol = d.gathered ? "out_rows" as const : "rows" as const;
  const name = `${what} rows=${rows} heads=${heads} d=${headDim} left=${left} right=${right} shift=${shift}`;
  const width = heads * headDim;
  const n = 2 * Math.ceil(width / 3);
  const work = 6 * rows * width * (left + right) + n * width * (left + right);
  const variants = towerAttentionVariants({ kind: "local_attention", headDim });
  const built = towerCase("local_attention", name, rows, work, PRODUCT, (builder, random) => {
    const part = (name: string) =>
      builder.activation(name, [symbol, width], random.normals(rows * width, 0.1));
    return {
      kind: "local_attention",
      q: part("q"),
      k: part("k"),
      v: part("v"),
      perDimScale: builder.vector("per_dim_scale", headDim, "bf16", 0.1, 0.6),
      relative: builder.matrix("relative", width, n, { kind: "bf16" }),
      valid: builder.ids(
        "valid",
        [symbol, 1],
        Array.from({ length: rows }, (_, row) => valid(row) ? 1 : 0),
      ),
      y: builder.output("y", [symbol, width]),
      heads,
      headDim,
      left,
      right,
      shift,
      qScale: headDim ** -0.5 / Math.LN2,
      kScale: Math.log(1 + Math.E) / Math.LN2,
      cap: 50,
    };
  }, d.gathered ? rows : 1);
  return { ...built, variants };
}

function lightConvCase(rows: number, n: number, taps: number, kind: PlainKind, magnitude = 1): TableCase {
  const name = `rows=${rows} n=${n} taps=${taps} ${kind} magnitude=${magnitude}`;
  return towerCase("light_conv", name, rows, 20 * rows * n * taps, F32, (builder, random) => ({
    kind: "light_conv",
    x: builder.activation("x", ["rows", 2 * n], random.normals(rows * 2 * n, 0.2 * magnitude, magnitude)),
    weight: builder.plain("w", [n, taps], kind, random.normals(n * taps, 0, taps ** -0.5)),
    norm: builder.vector("norm", n, kind, 1, 0.3),
    y: builder.output("y", ["rows", n]),
    eps: 1e-5,
  }));
}

function layerNormCase(rows: number, n: number, bias: boolean, kind: PlainKind, mean = 0.3): TableCase {
  const name = `rows=${rows} n=${n} ${kind}${bias ? " bias" : ""} mean=${mean}`;
  return towerCase("layer_norm", name, rows, 30 * rows * n, F32, (builder, random) => ({
    kind: "layer_norm",
    x: builder.activation("x", ["rows", n], random.normals(rows * n, mean)),
    weight: builder.vector("weight", n, kind, 1, 0.3),
    bias: bias ? builder.vector("bias", n, kind, 0, 0.5) : undefined,
    y: builder.output("y", ["rows", n]),
    eps: 1e-5,
  }));
}

interface ClipDescription {
  rows: number;
  k: number;
  n: number;
  format: number;
  silu?: boolean;
  prologue?: boolean;
  geluMul?: boolean;
  bias?: boolean;
  clip?: boolean;
  /** rows of class decode, which towers have not but the op takes */ decode?: boolean;
}

/** Linears as towers have them: bounds, SiLU, and both. */
function clippedCase(d: ClipDescription): TableCase {
  const { rows, k, n, clip = true } = d;
  const format = MAIN_FORMATS[d.format];
  const words = (["silu", "prologue", "geluMul", "bias", "decode"] as const).filter((word) => d[word]);
  const name = `${clip ? "clip" : "no clip"} ${format.kind} rows=${rows} k=${k} n=${n} ${words.join(" ")}`
    .trim();
  const parts = d.prologue ? { residual: true, postNorm: true, hOut: true, preNorm: true } : {};
  const build: Build = (builder, random) => {
    const activation = (name: string, width: number) =>
      builder.activation(name, ["rows", width], random.normals(rows * width, 0.1));
    const prologue = d.prologue
      ? {
        residual: activation("residual", k),
        postNorm: builder.vector("post_norm", k),
        hOut: builder.output("h", ["rows", k]),
        preNorm: builder.vector("pre_norm", k, "bf16"),
      }
      : {};
    return {
      kind: "linear",
      x: activation("x", k),
      ...prologue,
      weights: [builder.matrix("w", n, k, format)],
      biases: d.bias ? [builder.vector("bias", n, "bf16", 0.3, 0.5)] : undefined,
      epilogue: d.silu
        ? { kind: "silu" }
        : d.geluMul
        ? { kind: "gelu_mul", other: activation("other", n), column: 0 }
        : { kind: "none" },
      clip: clip ? { input: [-0.5, 0.625], output: [-0.25, 0.75] } : undefined,
      y: builder.output("y", ["rows", n]),
      eps: 1e-4,
    };
  };
  const built = towerCase("linear", name, rows, rows * k * n, PRODUCT, build, 1, d.decode);
  const { epilogue } = built.build(true).plan.ops[0] as LinearOp;
  return {
    ...built,
    variants: linearVariants(
      { formats: [format], epilogue: epilogue.kind, ...parts, biases: [d.bias], clip },
      rowKinds(0, rows),
    ),
  };
}

/** All cases of towers. */
export function towerCases(): TableCase[] {
  const linears = [
    { rows: 1, k: 64, n: 40, format: 1 },
    { rows: 19, k: 96, n: 33, format: 1 },
    { rows: 65, k: 128, n: 70, format: 0 },
    { rows: 20, k: 64, n: 45, format: 2 },
    { rows: 20, k: 128, n: 45, format: 3 },
  ].flatMap((d) => [
    clippedCase(d),
    clippedCase({ ...d, silu: true }),
    clippedCase({ ...d, prologue: true }),
    clippedCase({ ...d, prologue: true, geluMul: true, bias: true }),
    clippedCase({ ...d, silu: true, clip: false, bias: true }),
    ...(d.rows < 16 || d.format === 3
      ? [clippedCase({ ...d, rows: Math.min(d.rows, 5), decode: true, silu: true, prologue: true })]
      : []),
  ]);
  return [
    ...([["bf16", 64], ["f32", 33], ["f16", 257]] as const).flatMap(([kind, n]) => [
      addPositionsCase(3, n, kind, false),
      addPositionsCase(65, n, kind, true),
    ]),
    ...[1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 130].map((rows) => patchAttentionCase(rows, 2, 2, 64)),
    ...[4, 16, 32, 64, 72, 80, 96, 128].map((d) => patchAttentionCase(37, 3, 3, d)),
    patchAttentionCase(70, 4, 2, 72),
    patchAttentionCase(300, 2, 1, 64),
    patchAttentionCase(289, 1, 1, 72, 20),
    poolCase(9, 1, 9, 64, false),
    poolCase(40, 7, 4, 33, true),
    poolCase(90, 10, 9, 257, true),
    subsampleCase(2, 8, 1, 4, true, false),
    subsampleCase(9, 16, 1, 12, true, false),
    subsampleCase(20, 8, 1, 33, true, true),
    subsampleCase(1, 8, 4, 4, false, false),
    subsampleCase(12, 8, 7, 5, false, true),
    subsampleCase(11, 16, 12, 32, false, false),
    subsampleCase(6, 64, 128, 32, false, true),
    localAttentionCase("one", { rows: 1, heads: 2, headDim: 16 }),
    localAttentionCase("few", { rows: 5, heads: 2, headDim: 32 }),
    localAttentionCase("many", { rows: 40, heads: 4, headDim: 64 }),
    localAttentionCase("large", { rows: 14, heads: 1, headDim: 200 }),
    localAttentionCase("largest", { rows: 14, heads: 1, headDim: 512 }),
    localAttentionCase("real", { rows: 30, heads: 3, headDim: 128, gathered: true }),
    localAttentionCase("both sides", { rows: 33, heads: 2, headDim: 20, left: 5, right: 4, shift: 3 }),
    localAttentionCase("padded", { rows: 26, heads: 2, headDim: 32, valid: (row) => row < 9 }),
    localAttentionCase("holes", { rows: 26, heads: 2, headDim: 32, valid: (row) => row % 3 === 1, right: 3 }),
    lightConvCase(1, 32, 5, "bf16"),
    lightConvCase(3, 33, 5, "f32"),
    lightConvCase(40, 64, 5, "bf16"),
    lightConvCase(17, 257, 3, "f16"),
    lightConvCase(9, 40, 1, "bf16"),
    lightConvCase(20, 40, 9, "bf16", 40),
    ...[1, 5, 65].flatMap((rows) =>
      [8, 33, 972].map((n) => layerNormCase(rows, n, rows !== 5, rows === 1 ? "f32" : "bf16"))
    ),
    layerNormCase(4, 100, true, "f16", 30),
    ...linears,
  ];
}
