/** How much is decoded for an item of a HEIC file that is made of others, such as a grid of tiles. */
import type { Bytes } from "./bytes.ts";

/** A list of items that one refers to. */
interface Reference {
  /** such as `dimg`: made of these */ kind: string;
  /** the item, their number, and they */ data: Bytes;
}

/** Items within items that are followed; files have two. */
const MOST_LEVELS = 8;
/** Parts of all items together; a photograph of 48 million pixels has some 200 tiles. */
const MOST_PARTS = 65_536;

/**
 * The pixels that are decoded for an item or, if these are more, for one that belongs to it, such as its transparency. `wide`: item
 * names take four bytes. `ownPixels`: what an item says of itself.
 */
export function itemPixels(
  item: number,
  references: readonly Reference[],
  wide: boolean,
  ownPixels: (item: number) => number,
): number {
  const parts = new Map<number, number[]>();
  const belonging: number[] = [];
  const nameBytes = wide ? 4 : 2;
  let left = MOST_PARTS;
  for (const { kind, data } of references) {
    const name = (at: number) => wide ? data.u32(at) : data.u16(at);
    const from = name(0), count = data.u16(nameBytes);
    if ((left -= count) < 0) return Infinity;
    const to = Array.from({ length: count }, (_, i) => name(nameBytes + 2 + i * nameBytes));
    if (kind === "dimg") {
      const list = parts.get(from) ?? [];
      parts.set(from, list);
      list.push(...to);
    }
    if (kind === "auxl" && to.includes(item)) belonging.push(from);
  }
  const known = new Map<number, number>(); // an item may be part of another many times
  const pixels = (of: number, level: number): number => {
    if (level > MOST_LEVELS) return Infinity;
    const before = known.get(of);
    if (before !== undefined) return before;
    known.set(of, Infinity); // while one that is part of itself is followed
    let sum = 0;
    for (const part of parts.get(of) ?? []) sum += pixels(part, level + 1);
    const all = Math.max(ownPixels(of), sum);
    known.set(of, all);
    return all;
  };
  return Math.max(...[item, ...belonging].map((each) => pixels(each, 0)));
}
