/** The KV pages and attention over them. */
import { NO_PAGE, type PageTable } from "../../engine/input.ts";
import { PAGE_TOKENS } from "../../schedule/groups.ts";
import type { AttendOp, AttentionOp, Rope } from "../../schedule/ops.ts";
import { rmsNorm } from "./norm.ts";
import { rope } from "./rope.ts";

/** The K and V of one layer within the pages of its group. */
export interface KvView {
  /** [pages, planes, kvHeads, 32, d] */ values: Float64Array;
  /** 2 · layers of the group */ planes: number;
  layer: number;
  kvHeads: number;
  d: number;
  /** what storing a head makes of it */ stored: (head: Float64Array) => Float64Array;
}

/** Where a row stands: its position and the page table of its sequence in the layer's group. */
export interface Place {
  position: number;
  table: PageTable;
  /** first and last position of its image or video block */ block?: readonly [number, number];
}

/** Index of lane 0 of K (plane 0) or V (plane 1) at `position`. */
function slot(kv: KvView, plane: 0 | 1, head: number, position: number, table: PageTable): number {
  const page = table.pages[Math.floor(position / PAGE_TOKENS) - table.first];
  if (page === undefined || page === NO_PAGE) throw new RangeError(`No page holds position ${position}.`);
  return (((page * kv.planes + 2 * kv.layer + plane) * kv.kvHeads + head) * PAGE_TOKENS +
    position % PAGE_TOKENS) * kv.d;
}

/** Stores the rows' k and v [r, kvHeads·d] at their positions. */
export function kvWrite(kv: KvView, k: Float64Array, v: Float64Array, places: readonly Place[]): void {
  places.forEach(({ position, table }, r) => {
    for (let head = 0; head < kv.kvHeads; head++) {
      const from = (r * kv.kvHeads + head) * kv.d;
      const [toK, toV] = [slot(kv, 0, head, position, table), slot(kv, 1, head, position, table)];
      kv.values.set(kv.stored(k.subarray(from, from + kv.d)), toK);
      kv.values.set(kv.stored(v.subarray(from, from + kv.d)), toV);
    }
  });
}

/** softmax(q · Kᵀ · scoreScale) · V over the visible keys; q [r, heads·d] → same. */
export function attend(
  q: Float64Array,
  kv: KvView,
  { heads, kvHeads, window, block = "causal", scoreScale }: Pick<
    AttendOp,
    "heads" | "kvHeads" | "window" | "block" | "scoreScale"
  >,
  places: readonly Place[],
): Float64Array {
  const { values, d } = kv;
  const y = new Float64Array(q.length);
  places.forEach(({ position, table, block: own }, r) => {
    const inWindow = window === null ? 0 : Math.max(0, position - window + 1);
    const first = own && block === "whole" ? Math.min(inWindow, own[0]) : inWindow;
    const last = own && block !== "causal" ? own[1] : position;
    for (let head = 0; head < heads; head++) {
      const kvHead = Math.floor(head / (heads / kvHeads));
      const at = (r * heads + head) * d;
      const scores: number[] = [];
      for (let key = first; key <= last; key++) {
        const k = slot(kv, 0, kvHead, key, table);
        let dot = 0;
        for (let i = 0; i < d; i++) dot += q[at + i] * values[k + i];
        scores.push(dot * scoreScale);
      }
      const largest = scores.reduce((a, b) => Math.max(a, b));
      const weights = scores.map((score) => Math.exp(score - largest));
      const total = weights.reduce((a, b) => a + b);
      weights.forEach((weight, n) => {
        const v = slot(kv, 1, kvHead, first + n, table);
        for (let i = 0; i < d; i++) y[at + i] += weight / total * values[v + i];
      });
    }
  });
  return y;
}

/** The numbers of an attention op. */
export type AttentionParameters = Pick<
  AttentionOp,
  | "heads"
  | "kvHeads"
  | "headDim"
  | "ownsKv"
  | "keysAreValues"
  | "normValues"
  | "window"
  | "block"
  | "eps"
  | "scoreScale"
>;

/** Head norms, RoPE, cache write and attention. qkv [r, width] → y [r, heads·d]; norms [d]. */
export function attention(
  qkv: Float64Array,
  qNorm: Float64Array | undefined,
  kNorm: Float64Array | undefined,
  kv: KvView,
  op: AttentionParameters & { rope: Rope },
  places: readonly Place[],
): Float64Array {
  const { heads, kvHeads, headDim: d, eps } = op;
  const width = qkv.length / places.length;
  const positions = places.map((place) => place.position);
  const columns = (from: number, count: number) => {
    const out = new Float64Array(places.length * count);
    for (let r = 0; r < places.length; r++) {
      out.set(qkv.subarray(r * width + from, r * width + from + count), r * count);
    }
    return out;
  };
  const normed = (x: Float64Array, weight?: Float64Array) => weight ? rmsNorm(x, weight, d, eps) : x;
  if (op.ownsKv) {
    const rawK = columns(heads * d, kvHeads * d);
    const rawV = op.keysAreValues ? rawK : columns((heads + kvHeads) * d, kvHeads * d);
    const k = rope(normed(rawK, kNorm), kvHeads, d, op.rope, positions);
    const v = op.normValues ? rmsNorm(rawV, undefined, d, eps) : rawV;
    kvWrite(kv, k, v, places);
  }
  const q = rope(normed(columns(0, heads * d), qNorm), heads, d, op.rope, positions);
  return attend(q, kv, op, places);
}
