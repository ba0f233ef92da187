/** Page groups: the KV-owning layers that share one page shape and one window, and so one page table per sequence. */
import type { ModelConfig } from "../checkpoint/config.ts";

/** How keys and values are stored: as numbers, or as 8-bit codes with an f32 scale for each head of a token. */
export type KvFormat = "f16" | "f32" | "q8";

/** Tokens in one KV page. */
export const PAGE_TOKENS = 32;

/** Layers whose keys and values lie in the same pages. */
export interface PageGroup {
  /** For messages: `sliding` or `full`, numbered if there is more than one of a kind. */
  name: string;
  /** Lanes per head. */
  headDim: number;
  /** Key and value heads. */
  kvHeads: number;
  /** Tokens that a query sees, itself included; null: all. */
  window: number | null;
  /** Owning layers in order; their place in this list is the layer index within a page. */
  layers: number[];
}

/** The page groups of a model in the order of their first layers. */
export function pageGroups(config: ModelConfig): PageGroup[] {
  const groups: PageGroup[] = [];
  for (const layer of config.layers) {
    if (layer.kvOwner !== layer.index) continue;
    const { headDim, kvHeads, window } = layer;
    const found = groups.find((g) => g.headDim === headDim && g.kvHeads === kvHeads && g.window === window);
    if (found) found.layers.push(layer.index);
    else groups.push({ name: layer.kind, headDim, kvHeads, window, layers: [layer.index] });
  }
  groups.forEach((group, index) => {
    const same = groups.slice(0, index).filter((other) => other.name.startsWith(group.name)).length;
    if (same > 0) group.name += same + 1;
  });
  return groups;
}

/** Bytes of the scale of a head of a token. */
export const SCALE_BYTES = 4;

/** Bytes of a head of a token. */
function headBytes(headDim: number, format: KvFormat): number {
  return format === "q8" ? headDim + SCALE_BYTES : headDim * (format === "f16" ? 2 : 4);
}

/** Bytes of one page of a group. */
export function pageBytes(group: PageGroup, format: KvFormat): number {
  return 2 * group.layers.length * group.kvHeads * PAGE_TOKENS * headBytes(group.headDim, format);
}
