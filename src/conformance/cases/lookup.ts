/** Cases of embed, per_layer_inputs and gather. */
import { BLOCK_FORMATS, F32, formatName, FORMATS, MAIN_FORMATS, seedOf, type TableCase } from "../case.ts";
import { type PlainKind, ProblemBuilder, type WeightFormat } from "../problem.ts";
import { SOFT_TOKENS, tableVariants } from "../../schedule/variants.ts";
import { Random } from "../random.ts";

/** Tokens of a case: the first, the last and random ones. */
function tokensOf(random: Random, rows: number, vocabulary: number): number[] {
  return Array.from({ length: rows }, (_, i) => [vocabulary - 1, 0][i] ?? random.integer(vocabulary));
}

function embedCase(format: WeightFormat, rows: number, width: number, soft = false): TableCase {
  const name = `${formatName(format)} rows=${rows} width=${width}${soft ? " soft" : ""}`;
  return {
    op: "embed",
    name,
    tolerance: F32,
    variants: [...tableVariants("embed", format), ...(soft ? [SOFT_TOKENS] : [])],
    work: 20 * rows * width,
    build(exact) {
      const random = new Random(seedOf(name));
      const vocabulary = 67;
      const tokens = tokensOf(random, rows, vocabulary);
      // soft: every row but each third has a soft token, in an order that is not that of the rows
      const builder = new ProblemBuilder(
        random,
        tokens.map((token, position) => ({
          token,
          position,
          soft: soft && position % 3 !== 1 ? rows - 1 - position : undefined,
        })),
        { vocabulary },
      );
      const table = builder.matrix("table", vocabulary, width, format);
      const softTokens = soft
        ? builder.plain("soft", [rows, width], "f32", random.normals(rows * width, 5))
        : undefined;
      const y = builder.output("y", ["rows", width]);
      return builder.finish({
        kind: "embed",
        table,
        soft: softTokens,
        y,
        scale: Math.fround(Math.sqrt(width)),
      }, exact);
    },
  };
}

function perLayerCase(
  format: WeightFormat,
  rows: number,
  layers: number,
  slice: number,
  norms: PlainKind,
  magnitude = 1,
): TableCase {
  const name = `${
    formatName(format)
  } rows=${rows} layers=${layers} slice=${slice} norm=${norms} magnitude=${magnitude}`;
  return {
    op: "per_layer_inputs",
    name,
    tolerance: F32,
    variants: tableVariants("per_layer_inputs", format),
    work: 30 * rows * layers * slice,
    build(exact) {
      const random = new Random(seedOf(name));
      const vocabulary = 41;
      const tokens = tokensOf(random, rows, vocabulary);
      const builder = new ProblemBuilder(random, tokens.map((token, position) => ({ token, position })), {
        vocabulary,
      });
      const width = layers * slice;
      const values = random.normals(rows * width, 0.2 * magnitude, magnitude);
      const projected = builder.activation("projected", ["rows", width], values);
      const table = builder.matrix("table", vocabulary, width, format);
      const norm = builder.vector("norm", slice, norms);
      const y = builder.output("y", ["rows", width]);
      return builder.finish({
        kind: "per_layer_inputs",
        projected,
        table,
        norm,
        y,
        slice,
        eps: 1e-3,
        projectionScale: 0.125,
        tableScale: 16,
        outScale: Math.fround(Math.SQRT1_2),
      }, exact);
    },
  };
}

function gatherCase(rows: number, width: number, kept: "all" | "last" | "some"): TableCase {
  const name = `rows=${rows} width=${width} keeps ${kept}`;
  return {
    op: "gather",
    name,
    tolerance: F32,
    variants: ["gather"],
    work: 20 * rows * width,
    build(exact) {
      const random = new Random(seedOf(name));
      const all = Array.from({ length: rows }, (_, i) => i);
      const picked = kept === "all" ? all : kept === "last" ? [rows - 1] : all.filter((i) => i % 3 === 1);
      const builder = new ProblemBuilder(random, all.map((position) => ({ position })), {
        outputs: picked.map((row) => ({ row })),
      });
      const x = builder.activation("x", ["rows", width], random.normals(rows * width));
      const y = builder.output("y", ["out_rows", width]);
      return builder.finish({ kind: "gather", x, y }, exact);
    },
  };
}

/** All cases of ops that look rows up. */
export function lookupCases(): TableCase[] {
  return [
    ...FORMATS.flatMap((format) => [embedCase(format, 1, 128), embedCase(format, 5, 384)]),
    ...[1, 3, 100, 1537].map((width) => embedCase({ kind: "bf16" }, 4, width)),
    ...MAIN_FORMATS.map((format) => embedCase(format, 7, 192, true)),
    embedCase({ kind: "bf16" }, 65, 33, true),
    ...[63, 64, 65].map((rows) => embedCase(MAIN_FORMATS[3], rows, 192)),
    ...FORMATS.map((format) => perLayerCase(format, 3, 3, 128, "bf16")),
    ...BLOCK_FORMATS.flatMap((format) => [
      embedCase(format, 3, 512),
      perLayerCase(format, 2, 4, 128, "bf16"),
    ]),
    ...MAIN_FORMATS.flatMap((format) => [
      perLayerCase(format, 1, 10, 64, "f32"),
      perLayerCase(format, 65, 2, 32, "f16"),
      perLayerCase(format, 2, 42, 256, "bf16", 7e4),
    ]),
    perLayerCase({ kind: "bf16" }, 7, 5, 33, "bf16"),
    ...[1, 63, 64, 65, 32767, 32768, 32800, 40002].map((rows) => gatherCase(rows, 5, "all")),
    ...[1, 7, 64].flatMap((rows) => [gatherCase(rows, 33, "last"), gatherCase(rows, 256, "all")]),
    gatherCase(65, 100, "some"),
  ];
}
