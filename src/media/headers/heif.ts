/** Size and orientation of an AVIF or HEIC picture from the boxes of its primary item. */
import { MediaError } from "../../errors.ts";
import { codedPixels } from "./av1.ts";
import type { Bytes } from "./bytes.ts";
import { Truncated } from "./bytes.ts";
import type { ImageHeader } from "./image.ts";
import { itemPixels } from "./items.ts";

interface Box {
  kind: string;
  /** the content, without the header */ data: Bytes;
}

const MAX_BOXES = 4096; // of one parent

/** What `meta` says of its items. */
interface Meta {
  primary: number;
  /** its boxes */ parts: Box[];
  /** properties, which associations name by index from 1 */ properties: Box[];
  /** property indices of each item */ associations: ReadonlyMap<number, number[]>;
}

/** An AVIF picture. Its decoder neither turns it nor goes by the size in the boxes. */
export function avifHeader(file: Bytes): ImageHeader {
  const meta = readMeta(file, "AVIF");
  const header: ImageHeader = { width: 0, height: 0, orientation: 1 };
  let turns = 0; // quarter turns to the left
  let mirror: number | undefined; // 0 top to bottom, 1 left to right
  for (const property of propertiesOf(meta, meta.primary)) {
    if (property.kind === "ispe") [header.width, header.height] = sizeIn(property);
    else if (property.kind === "irot") turns = property.data.u8(0) & 3;
    else if (property.kind === "imir") mirror = property.data.u8(0) & 1;
  }
  // First the turn, then the mirror, each as the orientation that does the same.
  const plain = [1, 8, 3, 6], topToBottom = [4, 5, 2, 7], leftToRight = [2, 7, 4, 5];
  const iloc = meta.parts.find(({ kind }) => kind === "iloc")?.data;
  const idat = meta.parts.find(({ kind }) => kind === "idat")?.data;
  if (iloc !== undefined) header.codedPixels = codedPixels(file, iloc, idat);
  header.orientation = (mirror === undefined ? plain : mirror === 0 ? topToBottom : leftToRight)[turns];
  return header;
}

/**
 * A HEIC picture. Its decoder turns, mirrors and crops it, and refuses an item that is coded larger than its boxes say; but items
 * are made of others, of as many as a file likes and each as often.
 */
export function heicHeader(file: Bytes): ImageHeader {
  const meta = readMeta(file, "HEIC");
  const size = (item: number) => {
    const ispe = propertiesOf(meta, item).find(({ kind }) => kind === "ispe");
    return ispe && sizeIn(ispe);
  };
  const [width, height] = size(meta.primary) ?? [0, 0];
  const iref = meta.parts.find(({ kind }) => kind === "iref")?.data;
  const references = iref === undefined ? [] : boxes(iref.part(4, iref.length));
  const wide = iref !== undefined && iref.u8(0) > 0;
  const coded = itemPixels(meta.primary, references, wide, (item) => {
    const [across, down] = size(item) ?? [0, 0];
    return across * down;
  });
  return { width, height, orientation: 1, cropped: true, codedPixels: coded };
}

function sizeIn({ data }: Box): [number, number] {
  return [data.u32(4), data.u32(8)];
}

function readMeta(file: Bytes, format: string): Meta {
  const find = (list: Box[], kind: string, what: string) => {
    const box = list.find((entry) => entry.kind === kind);
    if (box !== undefined) return box.data;
    throw new MediaError(
      "media_damaged",
      `The ${format} picture is damaged: it has no ${what}. Save it again.`,
    );
  };
  const meta = find(boxes(file), "meta", "meta");
  const parts = boxes(meta.part(4, meta.length)); // behind version and flags
  const pitm = find(parts, "pitm", "primary item");
  const primary = pitm.u8(0) === 0 ? pitm.u16(4) : pitm.u32(4);
  const properties = boxes(find(parts, "iprp", "item properties"));
  const all = boxes(find(properties, "ipco", "property list"));
  return { primary, parts, properties: all, associations: associations(properties) };
}

function propertiesOf({ properties, associations }: Meta, item: number): Box[] {
  return (associations.get(item) ?? []).map((index) => properties[index - 1]).filter((box) =>
    box !== undefined
  );
}

/** Property indices (from 1) of each item. */
function associations(properties: Box[]): Map<number, number[]> {
  const owned = new Map<number, number[]>();
  for (const { kind, data } of properties) {
    if (kind !== "ipma") continue;
    const version = data.u8(0), wide = (data.u8(3) & 1) !== 0;
    const count = data.u32(4);
    let at = 8;
    for (let i = 0; i < count; i++) {
      const item = version === 0 ? data.u16(at) : data.u32(at);
      at += version === 0 ? 2 : 4;
      const indices = owned.get(item) ?? [];
      owned.set(item, indices);
      for (let left = data.u8(at++); left > 0; left--) {
        indices.push(wide ? data.u16(at) & 0x7fff : data.u8(at) & 0x7f);
        at += wide ? 2 : 1;
      }
    }
  }
  return owned;
}

function boxes(data: Bytes): Box[] {
  const found: Box[] = [];
  for (let at = 0; at + 8 <= data.length;) {
    if (found.length === MAX_BOXES) throw new Truncated(`more than ${MAX_BOXES} boxes`);
    let size = data.u32(at), header = 8;
    if (size === 1) [size, header] = [data.u64(at + 8), 16];
    if (size === 0) size = data.length - at;
    if (size < header) throw new Truncated(`a box of ${size} bytes`);
    const kind = data.ascii(at + 4, 4);
    // The pixels may be cut off; whatever is needed here stands before them.
    if (at + size > data.length && kind !== "mdat") throw new Truncated(`box ${kind}`);
    if (kind !== "mdat") found.push({ kind, data: data.part(at + header, at + size) });
    at += size;
  }
  return found;
}
