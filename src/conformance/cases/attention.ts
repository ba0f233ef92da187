/** Cases of attention, attend and kv_write: pages, windows, head shapes. */
import type { PageTable } from "../../engine/input.ts";
import { type KvFormat, PAGE_TOKENS } from "../../schedule/groups.ts";
import type { KvLayer } from "../../schedule/ops.ts";
import type { Tensor } from "../../schedule/tensor.ts";
import { attentionVariants } from "../../schedule/variants.ts";
import { HALF, HALF_IF_FAST, seedOf, type TableCase, type Tolerance } from "../case.ts";
import { type Problem, ProblemBuilder, type ProblemRow } from "../problem.ts";
import { Random } from "../random.ts";

/** One sequence of a case: `history` tokens in the cache, then `rows` new ones. */
export interface SequenceDescription {
  history: number;
  rows: number;
  decode?: boolean;
  /** which of the new rows this run brings, [from, to); default all */ slice?: [number, number];
}

/** What an attention case asks for. */
export interface AttentionDescription {
  op: "attention" | "attend" | "kv_write";
  /** decode sequences come first */ sequences: SequenceDescription[];
  heads: number;
  kvHeads: number;
  headDim: number;
  window?: number;
  /** default f32 */ kv?: KvFormat;
  /** default true */ ownsKv?: boolean;
  keysAreValues?: boolean;
  /** default true */ normValues?: boolean;
  /** default: headDim / 2 */ rotatedPairs?: number;
  theta?: number;
  /** added to positions by the rotation alone */ positionOffset?: number;
  /** factor of positions in the rotation of an attention; default 1 */ positionScale?: number;
  /** factor of the scores of an attention; default 1 */ scoreScale?: number;
  /** K of the last key of each sequence is this much larger than the others */ peak?: number;
  /**
   * moves every score of an attend this far; q and K are then multiples of 1/8, so that f32 holds large scores exactly
   */
  shift?: number;
  /** the op runs on gathered rows: the last of each sequence */ gathered?: boolean;
  /** sequences that take part (their data does not depend on the others); default all */ pick?: number[];
  /** first and last position of each block of the first sequence */ blocks?: readonly (readonly [
    number,
    number,
  ])[];
  /** what rows of a block see; default: earlier keys alone */ rule?: "window" | "whole";
}

/** Layers of the page group; the case is about the second. */
const LAYERS = 2;

/** First position that a row at `position` sees. */
function firstVisible(position: number, window: number | undefined): number {
  return window === undefined ? 0 : Math.max(0, position - window + 1);
}

/** Builds the problem of a description. */
export function attentionProblem(d: AttentionDescription, seed: number, exact: boolean): Problem {
  const { heads, kvHeads, headDim, window, kv: kind = "f32" } = d;
  const ownsKv = d.op === "kv_write" || d.op === "attention" && (d.ownsKv ?? true);
  const pick = d.pick ?? d.sequences.map((_, i) => i);
  const sequences = pick.map((i) => d.sequences[i]);
  const randoms = pick.map((i) => new Random(seed + 7919 * (i + 1)));

  const rows = sequences.flatMap(({ history, rows, decode, slice: [from, to] = [0, rows] }, sequence) =>
    Array.from({ length: to - from }, (_, i): ProblemRow => ({
      position: history + from + i,
      sequence,
      rowClass: decode ? "decode" : "prefill",
      block: sequence === 0
        ? d.blocks?.find(([first, last]) => first <= history + from + i && history + from + i <= last)
        : undefined,
    }))
  );
  const spans = sequences.map(({ history, rows }) => ({
    first: Math.floor(firstVisible(history, window) / PAGE_TOKENS),
    end: Math.floor((history + rows - 1) / PAGE_TOKENS) + 1,
  }));
  const poolPages = spans.reduce((sum, { first, end }) => sum + end - first, 3);
  const order = new Random(seed).permutation(poolPages);
  const tables = spans.map(({ first, end }): PageTable => ({ first, pages: order.splice(0, end - first) }));
  const ends = sequences.map((_, s) => rows.findLastIndex((row) => row.sequence === s));
  const builder = new ProblemBuilder(new Random(seed), rows, {
    sequences: tables,
    outputs: d.gathered ? ends.map((row) => ({ row })) : [{ row: 0 }],
  });

  // Scores of about ±2: enough to tell keys apart, not so much that one key takes all.
  const eighths = (value: number) => d.shift ? Math.round(8 * value) / 8 : value;
  const { scoreScale = 1 } = d;
  const size = d.op === "attend" ? 1 : Math.SQRT2 / headDim ** 0.25 / Math.sqrt(scoreScale);
  const values = new Float64Array(poolPages * 2 * LAYERS * kvHeads * PAGE_TOKENS * headDim).fill(NaN);
  sequences.forEach(({ history, rows }, s) => {
    const end = ownsKv ? history : history + rows;
    for (let position = firstVisible(history, window); position < end; position++) {
      const page = tables[s].pages[Math.floor(position / PAGE_TOKENS) - tables[s].first];
      for (const plane of [2, 3]) {
        for (let head = 0; head < kvHeads; head++) {
          const at = ((page * 2 * LAYERS + plane) * kvHeads + head) * PAGE_TOKENS + position % PAGE_TOKENS;
          const large = d.peak && position === end - 1 && plane === 2 ? d.peak : 1;
          for (let i = 0; i < headDim; i++) {
            values[at * headDim + i] = plane === 2
              ? eighths(randoms[s].normal(d.shift ? d.shift / (2 * Math.sqrt(headDim)) : 0, size * large))
              : randoms[s].normal(0.2);
          }
        }
      }
    }
  });
  const pages = builder.pages("pages", [poolPages, 2 * LAYERS, kvHeads, PAGE_TOKENS, headDim], kind, values);
  const kv: KvLayer = { pages, layer: 1, group: 0 };

  const live = d.gathered ? "out_rows" as const : "rows" as const;
  const activation = (name: string, width: number, deviation: number, mean = 0): Tensor => {
    const perSequence = sequences.map(({ rows }, s) =>
      randoms[s].normals(rows * width, mean, deviation).map(eighths)
    );
    const kept = perSequence.map((values, s) => {
      const [from, to] = sequences[s].slice ?? [0, sequences[s].rows];
      return values.slice((d.gathered ? to - 1 : from) * width, to * width);
    });
    return builder.activation(name, [live, width], Float64Array.from(kept.flatMap((values) => [...values])));
  };
  const [queryWidth, keyWidth] = [heads * headDim, kvHeads * headDim];
  if (d.op === "kv_write") {
    const [k, v] = [activation("k", keyWidth, 1), activation("v", keyWidth, 3)];
    return builder.finish({ kind: "kv_write", k, v, kv, kvHeads, headDim }, exact);
  }
  const common = { kv, heads, kvHeads, headDim, window: window ?? null, block: d.rule };
  if (d.op === "attend") {
    const q = activation("q", queryWidth, 1, d.shift ? 1 : 0);
    const y = builder.output("y", [live, queryWidth]);
    return builder.finish({ kind: "attend", q, y, ...common, scoreScale: 2 / Math.sqrt(headDim) }, exact);
  }
  const width = queryWidth + (ownsKv ? keyWidth * (d.keysAreValues ? 1 : 2) : 0);
  const qkv = activation("qkv", width, 3);
  const qNorm = builder.vector("q_norm", headDim, "bf16", size, 0.3 * size);
  const kNorm = ownsKv ? builder.vector("k_norm", headDim, "bf16", size, 0.3 * size) : undefined;
  const y = builder.output("y", [live, queryWidth]);
  return builder.finish({
    kind: "attention",
    qkv,
    qNorm,
    kNorm,
    y,
    ...common,
    ownsKv,
    keysAreValues: d.keysAreValues ?? false,
    normValues: d.normValues ?? true,
    rope: {
      theta: d.theta ?? 1e4,
      rotatedPairs: d.rotatedPairs ?? headDim / 2,
      positionScale: d.positionScale ?? 1,
      positionOffset: d.positionOffset,
    },
    eps: 1e-3,
    scoreScale,
  }, exact);
}

function name(d: AttentionDescription): string {
  const sequences = d.sequences.map((s) => `${s.history}+${s.rows}${s.decode ? "d" : ""}`).join(",");
  const parts = [`${d.kv ?? "f32"} sequences ${sequences} heads=${d.heads}/${d.kvHeads} d=${d.headDim}`];
  const numbers = [
    "window",
    "rotatedPairs",
    "theta",
    "positionOffset",
    "positionScale",
    "scoreScale",
  ] as const;
  for (const key of [...numbers, "peak", "shift", "rule"] as const) {
    if (d[key] !== undefined) parts.push(`${key}=${d[key]}`);
  }
  if (d.blocks) parts.push(`blocks ${d.blocks.map((block) => block.join("-")).join(",")}`);
  if (d.ownsKv === false) parts.push("shared");
  if (d.normValues === false) parts.push("raw values");
  for (const key of ["keysAreValues", "gathered"] as const) if (d[key]) parts.push(key);
  return parts.join(" ");
}

function variantsOf(d: AttentionDescription): string[] {
  const decode = d.sequences.filter((sequence) => sequence.decode);
  const paths: ("row" | "prompt")[] = [];
  if (decode.length > 0) paths.push("row");
  if (decode.length < d.sequences.length) paths.push("prompt");
  return attentionVariants({
    ...d,
    pages: d.kv ?? "f32",
    window: d.window ?? null,
    ownsKv: d.ownsKv ?? true,
    rotatedPairs: d.rotatedPairs ?? d.headDim / 2,
    verifies: decode.some(({ rows }) => rows > 1),
    block: d.rule,
  }, paths);
}

/** Numbers that a case draws and multiplications of its reference, about. */
function workOf({ sequences, heads, kvHeads, headDim, window }: AttentionDescription): number {
  return sequences.reduce((sum, { history, rows }) => {
    const keys = Math.min(history + rows, (window ?? Infinity) + rows);
    return sum + headDim * (30 * kvHeads * keys + 2 * heads * rows * keys);
  }, 0);
}

/** Codes that the op itself stores may be one off where rounding before has moved a value across the middle of two. */
function toleranceOf({ op, kv, ownsKv = true }: AttentionDescription): Tolerance {
  const stores = op === "kv_write" || op === "attention" && ownsKv;
  return kv === "f16" || kv === "q8" && stores ? HALF : HALF_IF_FAST;
}

/** All cases of attention and its parts. */
export function attentionCases(): TableCase[] {
  const list: AttentionDescription[] = [];
  const add = (d: Omit<AttentionDescription, "op">, ...ops: AttentionDescription["op"][]) => {
    for (const op of ops) list.push({ ...d, op });
  };
  const small = { heads: 4, kvHeads: 2, headDim: 64 };
  for (const kv of ["f32", "f16", "q8"] as const) {
    // keys of one decode row: nothing before it, page borders, block borders
    for (const history of [0, 1, 6, 30, 31, 32, 33, 62, 63, 64, 254, 255, 256, 257, 511, 512, 700]) {
      add({ ...small, kv, sequences: [{ history, rows: 1, decode: true }] }, "attention", "attend");
    }
    // chunks of a prompt
    for (const rows of [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100]) {
      add({ ...small, kv, sequences: [{ history: 0, rows }] }, "attention", "attend", "kv_write");
      add({ ...small, kv, sequences: [{ history: 37, rows }], window: 40 }, "attention", "attend");
    }
    for (const history of [31, 32, 255, 256, 257]) {
      add({ ...small, kv, sequences: [{ history, rows: 20 }] }, "attention", "kv_write");
    }
    // windows: smaller, equal and larger than what there is
    for (const history of [0, 15, 16, 17, 31, 32, 100, 300]) {
      for (const rows of [1, 5]) {
        add({ ...small, kv, sequences: [{ history, rows, decode: rows === 1 }], window: 16 }, "attention");
      }
    }
    for (const window of [1, 2, 31, 32, 33, 255, 256, 257, 1024]) {
      add(
        { ...small, kv, sequences: [{ history: 290, rows: 1, decode: true }], window },
        "attention",
        "attend",
      );
      add({ ...small, kv, sequences: [{ history: 290, rows: 19 }], window }, "attention");
    }
    // head sizes and groups of query heads
    for (const headDim of [32, 64, 128, 256, 512]) {
      for (const [heads, kvHeads] of [[1, 1], [2, 2], [8, 1], [8, 2], [6, 3]]) {
        const shape = { heads, kvHeads, headDim, kv };
        add({ ...shape, sequences: [{ history: 40, rows: 1, decode: true }] }, "attention", "attend");
        add(
          { ...shape, sequences: [{ history: 40, rows: 1, decode: true }], window: 20 },
          "attention",
          "attend",
        );
        add(
          { ...shape, sequences: [{ history: 33, rows: 18 }], window: 20 },
          "attention",
          "attend",
          "kv_write",
        );
      }
    }
    add({ heads: 16, kvHeads: 1, headDim: 64, kv, sequences: [{ history: 9, rows: 3 }] }, "attention");
    // several sequences at different positions
    const mixed = [
      { history: 300, rows: 1, decode: true },
      { history: 0, rows: 1, decode: true },
      { history: 31, rows: 1, decode: true },
    ];
    for (const window of [undefined, 64]) {
      add({ ...small, kv, window, sequences: mixed }, "attention", "attend", "kv_write");
      add(
        { ...small, kv, window, sequences: [{ history: 0, rows: 33 }, { history: 70, rows: 9 }] },
        "attention",
      );
      add({ ...small, kv, window, sequences: [...mixed, { history: 20, rows: 30 }] }, "attention", "attend");
      add(
        {
          ...small,
          kv,
          window,
          sequences: [{ history: 50, rows: 4, decode: true }, { history: 0, rows: 12 }],
        },
        "attention",
      );
    }
    // shared readers, K as V, raw values, partial and absent rotation, gathered rows
    for (const sequences of [[{ history: 290, rows: 1, decode: true }], [{ history: 17, rows: 21 }], mixed]) {
      add({ ...small, kv, sequences, ownsKv: false }, "attention");
      add({ ...small, kv, sequences, ownsKv: false, window: 33, positionOffset: 1 }, "attention");
      add({ ...small, kv, sequences, ownsKv: false, window: 18, gathered: true }, "attention");
      add({ ...small, kv, sequences, keysAreValues: true }, "attention");
      add({ ...small, kv, sequences, keysAreValues: true, rotatedPairs: 8, theta: 1e6 }, "attention");
      add({ ...small, kv, sequences, normValues: false }, "attention");
      add({ ...small, kv, sequences, normValues: false, keysAreValues: true }, "attention");
      add(
        { ...small, kv, sequences, normValues: false, positionScale: 1 / 8, scoreScale: 1 / 8 },
        "attention",
      );
      add({ ...small, kv, sequences, window: 20, normValues: false, scoreScale: 168 ** -0.5 }, "attention");
      add({ ...small, kv, sequences, rotatedPairs: 5 }, "attention");
      add({ ...small, kv, sequences, rotatedPairs: 0 }, "attention");
      add({ ...small, kv, sequences, gathered: true }, "attend");
    }
    // more blocks of keys than one wave of parallel work takes
    add(
      { heads: 2, kvHeads: 1, headDim: 32, kv, sequences: [{ history: 8500, rows: 1, decode: true }] },
      "attention",
      "attend",
    );
    const real = { heads: 8, kvHeads: 2, headDim: 512, rotatedPairs: 64, theta: 1e6, kv };
    add({ ...real, sequences: [{ history: 260, rows: 1, decode: true }] }, "attention");
    add({ ...real, sequences: [{ history: 0, rows: 12 }], keysAreValues: true }, "attention");
    // far positions, with only the window's pages
    add({ ...small, kv, sequences: [{ history: 131000, rows: 1, decode: true }], window: 48 }, "attention");
    add({ ...small, kv, sequences: [{ history: 131000, rows: 17 }], window: 48 }, "attention");
    // scores whose exponentials vanish or overflow, over blocks in which some rows see no key
    for (const shift of [-120, 120]) {
      add({ ...small, kv, sequences: [{ history: 250, rows: 12 }], shift }, "attend");
      add({ ...small, kv, sequences: [{ history: 250, rows: 12 }], window: 4, shift }, "attend");
      add({ ...small, kv, sequences: [{ history: 700, rows: 1, decode: true }], shift }, "attend");
    }
    // rows of blocks: before, across and beyond pages, key blocks and windows; beside another sequence
    for (const rule of ["window", "whole"] as const) {
      for (const window of [undefined, 24]) {
        const blocked = { ...small, kv, window, rule };
        add({ ...blocked, sequences: [{ history: 0, rows: 9 }], blocks: [[2, 6]] }, "attention", "attend");
        add(
          { ...blocked, sequences: [{ history: 40, rows: 70 }], blocks: [[45, 98], [99, 103]] },
          "attention",
          "attend",
        );
        add(
          {
            ...blocked,
            sequences: [{ history: 230, rows: 50 }, { history: 3, rows: 20 }],
            blocks: [[240, 275]],
          },
          "attention",
        );
        add(
          { ...blocked, sequences: [{ history: 40, rows: 40 }], blocks: [[40, 79]], keysAreValues: true },
          "attention",
        );
        add({ ...blocked, sequences: [{ history: 40, rows: 1, decode: true }] }, "attention");
        add(
          {
            ...blocked,
            sequences: [{ history: 30, rows: 21 }],
            blocks: [[40, 50]],
            ownsKv: false,
            gathered: true,
          },
          "attention",
        );
      }
    }
    // one key takes nearly all of the weight
    add(
      { ...small, kv, sequences: [{ history: 300, rows: 1, decode: true }], peak: 20 },
      "attention",
      "attend",
    );
    add({ ...small, kv, sequences: [{ history: 300, rows: 20 }], peak: 20 }, "attention");
  }
  return list.map((d) => ({
    op: d.op,
    name: name(d),
    variants: variantsOf(d),
    work: workOf(d),
    tolerance: toleranceOf(d),
    build: (exact) => attentionProblem(d, seedOf(name(d)), exact),
  }));
}
