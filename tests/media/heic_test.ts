/** HEIC files that are made of more than they say, and damaged ones. */
import { assertEquals, assertMatch, assertRejects } from "@std/assert";
import { MediaError } from "../../mod.ts";
import { imageHeader } from "../../src/media/headers/image.ts";
import { readPicture } from "../../src/media/picture.ts";
import { mediaBytes } from "./support.ts";

const bytesOf = (value: number, length: number) =>
  Array.from({ length }, (_, i) => Math.floor(value / 256 ** (length - 1 - i)) % 256);
const ascii = (text: string) => [...new TextEncoder().encode(text)];
const box = (
  kind: string,
  content: number[],
) => [...bytesOf(8 + content.length, 4), ...ascii(kind), ...content];

/** A file whose items, from 1, have these sides, and refer to others; the first is the picture. */
function heic(
  sides: number[],
  references: [kind: string, from: number, to: number[]][],
  wide = false,
): Uint8Array {
  const name = (item: number) => bytesOf(item, wide ? 4 : 2);
  const ispe = sides.flatMap((side) => box("ispe", [0, 0, 0, 0, ...bytesOf(side, 4), ...bytesOf(side, 4)]));
  const ipma = sides.flatMap((_, i) => [...name(i + 1), 1, i + 1]);
  const iref = references.flatMap(([kind, from, to]) =>
    box(kind, [...name(from), ...bytesOf(to.length, 2), ...to.flatMap(name)])
  );
  const flags = [wide ? 1 : 0, 0, 0, 0];
  const meta = [
    ...box("pitm", [...flags, ...name(1)]),
    ...box("iprp", [
      ...box("ipco", ispe),
      ...box("ipma", [...flags, ...bytesOf(sides.length, 4), ...ipma]),
    ]),
    ...(references.length > 0 ? box("iref", [...flags, ...iref]) : []),
  ];
  return Uint8Array.from([
    ...box("ftyp", [...ascii("heic"), 0, 0, 0, 0]),
    ...box("meta", [0, 0, 0, 0, ...meta]),
  ]);
}

/** The same number again and again. */
const times = (count: number, item: number) => Array<number>(count).fill(item);

Deno.test("a HEIC counts all that is decoded for it: tiles, each as often as it is named, and their parts", () => {
  const coded = (...args: Parameters<typeof heic>) => imageHeader("heic", heic(...args)).codedPixels;
  for (const wide of [false, true]) {
    assertEquals(coded([30], [], wide), 900);
    assertEquals(coded([30, 20], [["dimg", 1, times(4, 2)]], wide), 1600);
    assertEquals(coded([30, 20, 50], [["dimg", 1, times(4, 2)], ["auxl", 3, [1]]], wide), 2500);
    assertEquals(coded([30, 20, 50], [["dimg", 1, times(4, 2)], ["thmb", 3, [1]]], wide), 1600);
    assertEquals(
      coded([1, 1, 10], [["dimg", 1, times(300, 2)], ["dimg", 2, times(300, 3)]], wide),
      9_000_000,
    );
  }
  assertEquals(coded([9, 9], [["dimg", 1, [2]], ["dimg", 2, [1]]]), Infinity, "a part of itself");
});

Deno.test("a HEIC that is made of too much is refused before anything is decoded", async () => {
  const levels = Array.from(
    { length: 6 },
    (_, i): [string, number, number[]] => ["dimg", i + 1, times(60, i + 2)],
  );
  for (
    const file of [
      heic([100, 512], [["dimg", 1, times(65_535, 2)]]),
      heic(Array(7).fill(64), levels),
      heic([64, 64], [["dimg", 1, [1]]]),
      heic([64, 1], [["dimg", 1, times(40_000, 2)], ["thmb", 2, times(40_000, 1)]]),
    ]
  ) {
    const error = await assertRejects(() => readPicture(file), MediaError);
    assertEquals(error.code, "media_too_large");
    assertMatch(error.message, /is coded with (\d+|too many) pixels; 100000000 are allowed/);
  }
});

Deno.test("a HEIC coded larger than its boxes say, and one with a tile that cannot be decoded, are refused", async () => {
  const small = mediaBytes("smooth.heic");
  const text = new TextDecoder("latin1").decode(small);
  for (let at = text.indexOf("ispe"); at >= 0; at = text.indexOf("ispe", at + 4)) {
    small.set([...bytesOf(2, 4), ...bytesOf(2, 4)], at + 8);
  }
  const bytes = mediaBytes("tiles.heic");
  const pixels = new TextDecoder("latin1").decode(bytes).indexOf("mdat") + 4;
  bytes[pixels] ^= 0x55; // the length of the first tile's data
  for (const damaged of [small.slice(), bytes]) {
    assertEquals((await assertRejects(() => readPicture(damaged), MediaError)).code, "media_damaged");
  }
});
