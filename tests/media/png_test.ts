/** PNG files of every kind, and such as were made to do harm. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { deflateSync } from "node:zlib";
import { MediaError } from "../../mod.ts";
import { readPicture } from "../../src/media/picture.ts";
import { png, type PngKind, pngOf } from "./png_writer.ts";
import { cpuMilliseconds } from "../support/cpu_time.ts";

/** A sample of a pixel of any depth: its place and channel mixed. */
const sample = (x: number, y: number, c: number, depth: number) =>
  (x * 7 + y * 13 + c * 5 + x * y) % 2 ** depth;

/** 8 bits of a sample as decoders make them: more are cut off, fewer fill the range. */
const eight = (value: number, depth: number) =>
  depth === 16 ? value >> 8 : Math.round(value * 255 / (2 ** depth - 1));

/** What a picture over white must be. */
function expected({ width, height, colour, depth, at }: PngKind, palette: Uint8Array): number[] {
  const pixels: number[] = [];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const samples = at(x, y);
      const values = samples.map((value) => eight(value, depth));
      const alpha = colour === 4 || colour === 6 ? values.pop()! : 255;
      const rgb = colour === 3
        ? [...palette.subarray(3 * samples[0], 3 * samples[0] + 3)]
        : values.length === 1
        ? [values[0], values[0], values[0]]
        : values;
      for (const value of rgb) pixels.push(Math.round((value * alpha + 255 * (255 - alpha)) / 255));
    }
  }
  return pixels;
}

const KINDS: [PngKind["colour"], number, number[], string][] = [
  [0, 1, [1, 2, 4, 8, 16], "grey"],
  [2, 3, [8, 16], "RGB"],
  [3, 1, [1, 2, 4, 8], "palette"],
  [4, 2, [8, 16], "grey and alpha"],
  [6, 4, [8, 16], "RGB and alpha"],
];

for (const [colour, channels, depths, name] of KINDS) {
  for (const interlaced of [false, true]) {
    Deno.test(`PNG of ${name}, ${depths.join(", ")} bits${interlaced ? ", interlaced" : ""}, has the pixels that were written`, async () => {
      for (const depth of depths) {
        for (const [width, height] of [[21, 17], [1, 1], [3, 9]]) {
          const palette = Uint8Array.from({ length: 3 * 2 ** Math.min(8, depth) }, (_, i) => i * 31 % 256);
          const kind: PngKind = {
            width,
            height,
            colour,
            depth,
            interlaced,
            chunks: colour === 3 ? [["PLTE", palette]] : [],
            at: (x, y) => Array.from({ length: channels }, (_, c) => sample(x * 97, y * 89, c * 41, depth)),
          };
          const picture = await readPicture(png(kind));
          assertEquals([picture.width, picture.height], [width, height]);
          assertEquals([...picture.pixels], expected(kind, palette), `${depth} bits, ${width} × ${height}`);
        }
      }
    });
  }
}

Deno.test("a colour that tRNS declares transparent shows white, of grey, RGB and palette", async () => {
  const at = (x: number) => x === 0 ? 7 : 200;
  const size = { width: 2, height: 1, depth: 8 } as const;
  const grey = await readPicture(
    png({ ...size, colour: 0, chunks: [["tRNS", new Uint8Array([0, 7])]], at: (x) => [at(x)] }),
  );
  assertEquals([...grey.pixels], [255, 255, 255, 200, 200, 200]);
  const rgb = await readPicture(
    png({
      ...size,
      colour: 2,
      chunks: [["tRNS", new Uint8Array([0, 7, 0, 7, 0, 7])]],
      at: (x) => [at(x), at(x), at(x)],
    }),
  );
  assertEquals([...rgb.pixels], [255, 255, 255, 200, 200, 200]);
  const palette = new Uint8Array([10, 20, 30, 40, 50, 60]);
  const half = await readPicture(
    png({
      ...size,
      colour: 3,
      chunks: [["PLTE", palette], ["tRNS", new Uint8Array([0, 51])]],
      at: (x) => [x],
    }),
  );
  assertEquals([...half.pixels], [255, 255, 255, 212, 214, 216]);
});

Deno.test("chunks that inflate to hundreds of megabytes take neither their memory nor more than seconds", async () => {
  const bomb = new Uint8Array(deflateSync(new Uint8Array(200e6), { level: 9 }));
  const header = png({ width: 10, height: 10, colour: 2, depth: 8, at: () => [1, 2, 3] }).subarray(16, 29);
  const pixels = new Uint8Array(deflateSync(new Uint8Array(310)));
  const named = new Uint8Array([65, 0, 0, ...bomb]);
  const before = Deno.memoryUsage().rss;
  const began = cpuMilliseconds();
  for (
    const chunks of [
      [["IDAT", bomb]],
      [["iCCP", named], ["IDAT", pixels]],
      [["zTXt", named], ["IDAT", pixels]],
    ] as const
  ) {
    try {
      const { width, height } = await readPicture(pngOf([["IHDR", header], ...chunks]));
      assertEquals([width, height], [10, 10]);
    } catch (error) {
      assert(error instanceof MediaError && error.code === "media_damaged", String(error));
    }
  }
  const grown = (Deno.memoryUsage().rss - before) / 1e6;
  assert(grown < 150, `${grown.toFixed(0)} MB`);
  assert(cpuMilliseconds() - began < 10_000);
});

Deno.test("pictures without pixels, without a palette, or with fewer pixels than declared are damaged", async () => {
  const size = { width: 10, height: 10, depth: 8 } as const;
  const header = (colour: PngKind["colour"]) => png({ ...size, colour, at: () => [1] }).subarray(16, 29);
  const few = new Uint8Array(deflateSync(new Uint8Array(40)));
  for (
    const chunks of [
      [["IHDR", header(2)]],
      [["IHDR", header(3)], ["IDAT", new Uint8Array(deflateSync(new Uint8Array(110)))]],
      [["IHDR", header(2)], ["IDAT", few]],
      [["IHDR", header(2)], ["IDAT", new Uint8Array(100)]],
      [["IDAT", few]],
    ] as const
  ) {
    const error = await assertRejects(() => readPicture(pngOf(chunks)), MediaError);
    assertEquals(error.code, "media_damaged");
  }
});
