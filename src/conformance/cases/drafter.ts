/** Cases of the two ends of a drafter: draft_input and centroid_head. */
import { tableVariants } from "../../schedule/variants.ts";
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
import { ProblemBuilder, type WeightFormat } from "../problem.ts";
import { Random } from "../random.ts";

function inputCase(format: WeightFormat, rows: number, width: number): TableCase {
  const name = `${formatName(format)} rows=${rows} width=${width}`;
  return {
    op: "draft_input",
    name,
    tolerance: F32,
    variants: tableVariants("draft_input", format),
    work: 20 * rows * width,
    build(exact) {
      const random = new Random(seedOf(name));
      const vocabulary = 67;
      const all = Array.from({ length: rows }, (_, position) => ({
        position,
        token: [vocabulary - 1, 0][position] ?? random.integer(vocabulary),
        rowClass: "decode" as const,
      }));
      const builder = new ProblemBuilder(random, all, {
        vocabulary,
        outputs: all.map((_, row) => ({ row })),
      });
      return builder.finish({
        kind: "draft_input",
        table: builder.matrix("table", vocabulary, width, format),
        state: builder.activation("state", ["out_rows", width], random.normals(rows * width, 0.3)),
        y: builder.output("y", ["out_rows", 2 * width]),
        scale: Math.fround(Math.sqrt(width)),
      }, exact);
    },
  };
}

interface HeadDescription {
  format: WeightFormat;
  rows: number;
  H: number;
  centroids: number;
  /** tokens of each */ each: number;
  topK: number;
  norm?: boolean;
  /** every second id of the ordering is no token */ missing?: boolean;
  /** all scores are equal */ ties?: boolean;
}

function headCase(d: HeadDescription): TableCase {
  const { format, rows, H, centroids, each, topK } = d;
  const words = (["norm", "missing", "ties"] as const).filter((key) => d[key]);
  const name = [
    `${formatName(format)} rows=${rows} H=${H} centroids=${topK}/${centroids} of ${each}`,
    ...words,
  ].join(" ");
  return {
    op: "centroid_head",
    name,
    tolerance: PRODUCT,
    variants: tableVariants("centroid_head", format),
    work: rows * topK * each * H,
    build(exact) {
      const random = new Random(seedOf(name));
      const all = Array.from({ length: rows }, (_, position) => ({ position, rowClass: "decode" as const }));
      const builder = new ProblemBuilder(random, all, { outputs: all.map((_, row) => ({ row })) });
      const V = centroids * each;
      const scores = random.normals(rows * centroids, 0, 2).map((score) => d.ties ? 1 : score);
      const ordering = random.permutation(V).map((id, i) => d.missing && i % 2 ? V + id : id);
      return builder.finish({
        kind: "centroid_head",
        x: builder.activation("x", ["out_rows", H], random.normals(rows * H, 0.2)),
        norm: d.norm ? builder.vector("norm", H, "bf16", 0.9, 0.1) : undefined,
        scores: builder.activation("scores", ["out_rows", centroids], scores),
        ordering: builder.ids("ordering", [centroids, each], ordering),
        table: builder.matrix("table", V, H, format),
        y: builder.output("y", ["out_rows", V]),
        topK,
        eps: 1e-3,
      }, exact);
    },
  };
}

/** All cases of a drafter's ops. */
export function drafterCases(): TableCase[] {
  const bf16: WeightFormat = { kind: "bf16" };
  return [
    ...FORMATS.flatMap((format) => [inputCase(format, 1, 128), inputCase(format, 5, 256)]),
    ...[1, 3, 100].map((width) => inputCase(bf16, 4, width)),
    ...BLOCK_FORMATS.flatMap((format) => [
      inputCase(format, 2, 256),
      headCase({ format, rows: 2, H: 512, centroids: 8, each: 6, topK: 3, norm: true }),
    ]),
    ...FORMATS.flatMap((format) =>
      [1, 4].map((rows) => headCase({ format, rows, H: 128, centroids: 8, each: 6, topK: 3, norm: true }))
    ),
    ...MAIN_FORMATS.flatMap((format) => [
      headCase({ format, rows: 2, H: 128, centroids: 16, each: 5, topK: 4 }),
      headCase({ format, rows: 2, H: 128, centroids: 4, each: 9, topK: 4, norm: true }),
      headCase({ format, rows: 2, H: 128, centroids: 8, each: 6, topK: 3, ties: true }),
      headCase({ format, rows: 2, H: 128, centroids: 8, each: 6, topK: 3, missing: true }),
    ]),
    headCase({ format: bf16, rows: 1, H: 33, centroids: 1, each: 7, topK: 1 }),
    headCase({ format: bf16, rows: 3, H: 64, centroids: 300, each: 1, topK: 32, norm: true }),
    headCase({ format: bf16, rows: 2, H: 64, centroids: 64, each: 64, topK: 8, norm: true }),
  ];
}
