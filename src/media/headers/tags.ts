/** Tags with titles and pictures that players put around sounds of any format: ID3 in front, ID3 of the first version and APE behind. */
import { Bytes } from "./bytes.ts";

const OLD_BYTES = 128;
const APE_FOOTER = 32;

/** Where the tags at the beginning end; beyond the end of the bytes where they are cut off. */
export function tagsEnd(bytes: Uint8Array): number {
  const data = new Bytes(bytes);
  let at = 0;
  while (at + 10 <= data.length && data.ascii(at, 3) === "ID3") {
    const [a, b, c, d] = [6, 7, 8, 9].map((i) => data.u8(at + i) & 127);
    const footer = (data.u8(at + 5) & 0x10) !== 0 ? 10 : 0; // which repeats the header
    at += 10 + (a << 21 | b << 14 | c << 7 | d) + footer;
  }
  return at;
}

/** What lies between the tags. */
export function withoutTags(bytes: Uint8Array): Uint8Array {
  const data = new Bytes(bytes);
  const from = Math.min(tagsEnd(bytes), data.length);
  let to = data.length;
  for (;;) {
    if (to - from >= OLD_BYTES && data.ascii(to - OLD_BYTES, 3) === "TAG") {
      to -= OLD_BYTES;
      continue;
    }
    const footer = to - APE_FOOTER;
    if (footer < from || data.ascii(footer, 8) !== "APETAGEX") break;
    const size = data.u32(footer + 12, true); // with the footer, without the header
    const all = size + (data.u32(footer + 20, true) >= 2 ** 31 ? APE_FOOTER : 0);
    if (size < APE_FOOTER || all > to - from) break;
    to -= all;
  }
  return bytes.subarray(from, to);
}
