/** Size and orientation of an AVIF picture from the boxes of its primary item. */
import { MediaError } from "../../errors.ts";
import { codedPixels } from "./av1.ts";
import type { Bytes } from "./bytes.ts";
import { Truncated } from "./bytes.ts";
import type { ImageHeader } from "./image.ts";

interface Box {
  kind: string;
  /** the content, without the header */ data: Bytes;
}

const MAX_BOXES = 4096; // of one parent

/** Reads `meta` and what it says of the primary item. */
export function avifHeader(file: Bytes): ImageHeader {
  const meta = find(boxes(file), "meta", "meta");
  const parts = boxes(meta.data.part(4, meta.data.length)); // behind version and flags
  const pitm = find(parts, "pitm", "primary item").data;
  const primary = pitm.u8(0) === 0 ? pitm.u16(4) : pitm.u32(4);
  const properties = boxes(find(parts, "iprp", "item properties").data);
  const all = boxes(find(properties, "ipco", "property list").data);
  const header: ImageHeader = { width: 0, height: 0, orientation: 1 };
  let turns = 0; // quarter turns to the left
  let mirror: number | undefined; // 0 top to bottom, 1 left to right
  for (const index of associations(properties, primary)) {
    const property = all[index - 1];
    if (property?.kind === "ispe") {
      [header.width, header.height] = [property.data.u32(4), property.data.u32(8)];
    } else if (property?.kind === "irot") turns = property.data.u8(0) & 3;
    else if (property?.kind === "imir") mirror = property.data.u8(0) & 1;
  }
  // First the turn, then the mirror, each as the orientation that does the same.
  const plain = [1, 8, 3, 6], topToBottom = [4, 5, 2, 7], leftToRight = [2, 7, 4, 5];
  const iloc = parts.find(({ kind }) => kind === "iloc")?.data;
  const idat = parts.find(({ kind }) => kind === "idat")?.data;
  if (iloc !== undefined) header.codedPixels = codedPixels(file, iloc, idat);
  header.orientation = (mirror === undefined ? plain : mirror === 0 ? topToBottom : leftToRight)[turns];
  return header;
}

/** Property indices (from 1) of an item. */
function associations(properties: Box[], item: number): number[] {
  const indices: number[] = [];
  for (const { kind, data } of properties) {
    if (kind !== "ipma") continue;
    const version = data.u8(0), wide = (data.u8(3) & 1) !== 0;
    const count = data.u32(4);
    let at = 8;
    for (let i = 0; i < count; i++) {
      const id = version === 0 ? data.u16(at) : data.u32(at);
      at += version === 0 ? 2 : 4;
      const owned = data.u8(at++);
      for (let j = 0; j < owned; j++) {
        if (id === item) indices.push(wide ? data.u16(at) & 0x7fff : data.u8(at) & 0x7f);
        at += wide ? 2 : 1;
      }
    }
  }
  return indices;
}

function boxes(data: Bytes): Box[] {
  const found: Box[] = [];
  for (let at = 0; at + 8 <= data.length && found.length < MAX_BOXES;) {
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

function find(list: Box[], kind: string, what: string): Box {
  const box = list.find((entry) => entry.kind === kind);
  if (box !== undefined) return box;
  throw new MediaError("media_damaged", `The AVIF picture is damaged: it has no ${what}. Save it again.`);
}
