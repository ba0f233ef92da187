/** AVIF files whose boxes say less than what is coded. */
import { assertEquals, assertMatch, assertRejects } from "@std/assert";
import { MediaError } from "../../mod.ts";
import { codedPixels } from "../../src/media/headers/av1.ts";
import { Bytes } from "../../src/media/headers/bytes.ts";
import { imageHeader } from "../../src/media/headers/image.ts";
import { readPicture } from "../../src/media/picture.ts";
import { mediaBytes } from "./support.ts";

const bytesOf = (value: number, length: number) =>
  Array.from({ length }, (_, i) => Math.floor(value / 256 ** (length - 1 - i)) % 256);
const ascii = (text: string) => [...new TextEncoder().encode(text)];
const box = (
  kind: string,
  ...content: number[]
) => [...bytesOf(8 + content.length, 4), ...ascii(kind), ...content];

/** A stream of a time unit's delimiter and a sequence header for frames of this size. */
function stream(width: number, height: number, short: boolean): number[] {
  let bits = "000" + "1"; // profile, still
  // In the long form: timing with a number of variable length, a model of decoders, one point of operation with both.
  if (short) bits += "1" + "01000";
  else {
    bits += "0" + "1" + "0".repeat(31) + "1" + "0".repeat(31) + "1" + "1" + "00101" + "1" + "00100" +
      "0".repeat(42);
    bits += "1" + "00000" + "0".repeat(12) + "01101" + "1" + "1" + "01010" + "01010" + "0" + "1" + "0011";
  }
  const size = (value: number) => (value - 1).toString(2);
  for (const side of [width, height]) bits += (size(side).length - 1).toString(2).padStart(4, "0");
  bits += size(width) + size(height);
  const header: number[] = [];
  for (let i = 0; i < bits.length; i += 8) header.push(parseInt(bits.slice(i, i + 8).padEnd(8, "0"), 2));
  header.push(0, 0);
  return [0x12, 0, 0x0a, header.length, ...header];
}

/** A file that says 10 × 10, with its item behind the boxes or in a box of their own. */
function avif(data: number[], version: 0 | 1 | 2, inside: boolean): Uint8Array {
  const ftyp = box("ftyp", ...ascii("avif"), 0, 0, 0, 0);
  const name = bytesOf(1, version === 2 ? 4 : 2);
  const build = (offset: number) => {
    const item = [...name, ...(version > 0 ? [0, inside ? 1 : 0] : []), 0, 0, ...bytesOf(1, 2)];
    item.push(...bytesOf(offset, 4), ...bytesOf(data.length, 4));
    const iloc = box("iloc", version, 0, 0, 0, 0x44, 0x00, ...name, ...item);
    const ipco = box("ipco", ...box("ispe", 0, 0, 0, 0, ...bytesOf(10, 4), ...bytesOf(10, 4)));
    const ipma = box("ipma", 0, 0, 0, 0, ...bytesOf(1, 4), ...bytesOf(1, 2), 1, 1);
    const parts = [...box("pitm", 0, 0, 0, 0, 0, 1), ...iloc, ...box("iprp", ...ipco, ...ipma)];
    return [...ftyp, ...box("meta", 0, 0, 0, 0, ...parts, ...(inside ? box("idat", ...data) : []))];
  };
  const head = build(0).length;
  return Uint8Array.from([...build(inside ? 0 : head + 8), ...(inside ? [] : box("mdat", ...data))]);
}

Deno.test("an AVIF that is coded larger than it says is refused by the size in its stream, wherever that lies", async () => {
  for (const short of [true, false]) {
    for (const [version, inside] of [[0, false], [1, false], [2, false], [1, true], [2, true]] as const) {
      const what = `${short} ${version} ${inside}`;
      assertEquals(
        imageHeader("avif", avif(stream(4000, 3001, short), version, inside)).codedPixels,
        12_004_000,
        what,
      );
      const file = avif(stream(65_536, 60_000, short), version, inside);
      const error = await assertRejects(() => readPicture(file), MediaError);
      assertEquals(error.code, "media_too_large", what);
      assertMatch(error.message, /10 × 10 is coded with 3932160000 pixels; 100000000 are allowed/);
    }
  }
});

Deno.test("the first part of each item is looked at, however many there are and however they are counted", () => {
  const data = Uint8Array.from(stream(300, 20, true));
  const half = data.length >> 1;
  for (const indexSize of [0, 4]) {
    const part = (from: number, to: number) => [
      ...bytesOf(7, indexSize),
      ...bytesOf(from, 4),
      ...bytesOf(to - from, 4),
    ];
    const item = (name: number, ...parts: number[][]) => [
      ...[...bytesOf(name, 2), 0, 0, 0, 0, ...bytesOf(parts.length, 2)],
      ...parts.flat(),
    ];
    const items = [item(1, part(0, half), part(half, data.length)), item(2, part(0, data.length))];
    const iloc = [1, 0, 0, 0, 0x44, indexSize, ...bytesOf(items.length, 2), ...items.flat()];
    assertEquals(codedPixels(new Bytes(data), new Bytes(Uint8Array.from(iloc)), undefined), 6000);
  }
  const empty = [1, 0, 0, 0, 0, 0, ...bytesOf(1, 2), ...bytesOf(1, 2), 0, 0, 0, 0, ...bytesOf(60_000, 2)];
  assertEquals(codedPixels(new Bytes(data), new Bytes(Uint8Array.from(empty)), undefined), 6000);
});

Deno.test("of real AVIF files the stream says what the boxes say", () => {
  for (const name of ["smooth.avif", "orientation4.avif", "orientation7.avif"]) {
    const { width, height, codedPixels } = imageHeader("avif", mediaBytes(name));
    assertEquals(codedPixels, width * height, name);
  }
});
