import { assert, assertEquals, assertMatch, assertRejects, assertThrows } from "@std/assert";
import { InvalidArgument, MediaError, UnknownOption } from "../../mod.ts";
import { parseGif } from "../../src/media/gif.ts";
import { exifOrientation } from "../../src/media/headers/exif.ts";
import { readPicture } from "../../src/media/picture.ts";
import { readSound } from "../../src/media/sound.ts";
import { readVideo } from "../../src/media/video.ts";
import {
  damagedCopies,
  expectedDigest,
  expectedPicture,
  mediaBytes,
  mediaPath,
  pixelDistance,
  sha256,
} from "./support.ts";
import { cpuMilliseconds } from "../support/cpu_time.ts";

/** Files whose decoders agree with Pillow's to the last bit, and by how much the others may differ. */
const FILES: Record<string, number> = {
  "smooth.png": 0,
  "rgba.png": 0,
  "la.png": 0,
  "grey.png": 0,
  "grey16.png": 0,
  "palette.png": 0,
  "palette_transparent.png": 0,
  "rgb_transparent.png": 0,
  "one_bit.png": 0,
  "smooth.jpg": 0,
  "progressive.jpg": 0,
  "grey.jpg": 0,
  "cmyk.jpg": 1,
  "ycck.jpg": 4, // another decoder: its transform and two conversions of colours round by themselves
  "lossy.webp": 0,
  "lossless.webp": 0,
  "alpha.webp": 0,
  "smooth.avif": 2,
  // The decoder leaves out the filters that smooth the edges of blocks.
  "smooth.heic": 2,
  "alpha.heic": 2,
  "deep.heic": 1,
  "tiles.heic": 4,
  "still.gif": 0,
};

for (const [name, tolerance] of Object.entries(FILES)) {
  Deno.test(`${name} has the pixels that Pillow reads, over white where it is transparent`, async () => {
    const distance = pixelDistance(await readPicture(mediaPath(name)), expectedPicture(name));
    assert(distance <= tolerance, `${distance} apart`);
  });
}

Deno.test("a JPEG stored in any of the eight orientations of Exif is read upright", async () => {
  const upright = expectedPicture("orientation");
  for (let orientation = 1; orientation <= 8; orientation++) {
    const picture = await readPicture(mediaPath(`orientation${orientation}.jpg`));
    const distance = pixelDistance(picture, upright);
    assert(distance <= 2, `orientation ${orientation}: ${distance} apart`);
  }
});

Deno.test("PNG and WebP with Exif, and AVIF turned and mirrored by boxes, are read upright", async () => {
  const upright = expectedPicture("orientation");
  const names = ["orientation6.png", "orientation6.webp"];
  for (const o of [2, 4, 5, 6, 7, 8]) names.push(`orientation${o}.avif`);
  for (const name of names) {
    const distance = pixelDistance(await readPicture(mediaPath(name)), upright);
    assert(distance <= 4, `${name}: ${distance} apart`);
  }
});

Deno.test("a HEIC that boxes crop, turn and mirror is read as it should be seen, to the last bit", async () => {
  const upright = expectedPicture("orientation");
  for (const turn of [0, 90, 180, 270]) {
    for (const flipped of ["", "flipped"]) {
      const picture = await readPicture(mediaPath(`turned${turn}${flipped}.heic`));
      assertEquals(pixelDistance(picture, upright), 0, `${turn} ${flipped}`);
    }
  }
});

Deno.test("the orientation is found in either order of bytes, behind other entries, and damaged data mean none", () => {
  const exif = (order: "II" | "MM", orientation: number, entries = 2) => {
    const bytes = new Uint8Array(8 + 2 + 12 * entries + 4);
    const view = new DataView(bytes.buffer), little = order === "II";
    bytes.set(new TextEncoder().encode(order));
    view.setUint16(2, 42, little);
    view.setUint32(4, 8, little);
    view.setUint16(8, entries, little);
    for (let i = 0; i < entries; i++) {
      view.setUint16(10 + 12 * i, i === entries - 1 ? 0x0112 : 0x0100 + i, little);
      view.setUint16(12 + 12 * i, 3, little);
      view.setUint32(14 + 12 * i, 1, little);
      view.setUint16(18 + 12 * i, i === entries - 1 ? orientation : 4, little);
    }
    return bytes;
  };
  for (let orientation = 1; orientation <= 8; orientation++) {
    for (const order of ["II", "MM"] as const) {
      assertEquals(exifOrientation(exif(order, orientation)), orientation);
    }
  }
  for (const wrong of [0, 9, 65_535]) assertEquals(exifOrientation(exif("II", wrong)), 1);
  const whole = exif("MM", 6);
  for (let length = 0; length < whole.length - 9; length++) {
    assertEquals(exifOrientation(whole.subarray(0, length)), 1, `${length} bytes`);
  }
});

Deno.test("a GIF of noise, interlaced or not, fills its table of codes and is read as Pillow reads it", async () => {
  for (const name of ["noise.gif", "noise_rows.gif"]) {
    const { pixels } = await readPicture(mediaPath(name));
    assertEquals(await sha256(pixels), expectedDigest("noise.gif"), name);
  }
});

Deno.test("of an animation the first frame is the picture", async () => {
  for (const name of ["animated.gif", "animated.webp"]) {
    assertEquals(pixelDistance(await readPicture(mediaPath(name)), expectedPicture("animated0")), 0);
  }
});

Deno.test("the same picture comes as path, file URL, data URI, Blob, bytes, and by HTTP with a wrong type", async () => {
  const bytes = mediaBytes("smooth.png");
  const server = Deno.serve({ port: 0, onListen() {} }, (request) => {
    return new URL(request.url).pathname === "/moved"
      ? new Response(null, { status: 302, headers: { location: "/picture.jpg" } })
      : new Response(bytes, { headers: { "content-type": "text/html" } });
  });
  const host = `http://localhost:${server.addr.port}`;
  const sources = [
    mediaPath("smooth.png"),
    new URL("../fixtures/media/smooth.png", import.meta.url),
    new URL("../fixtures/media/smooth.png", import.meta.url).href,
    `data:image/jpeg;base64,${bytes.toBase64()}`,
    new Blob([bytes], { type: "image/gif" }),
    bytes,
    bytes.buffer,
    `${host}/picture.jpg`,
    new URL(`${host}/moved`),
  ];
  try {
    for (const source of sources) {
      assertEquals(pixelDistance(await readPicture(source), expectedPicture("smooth.png")), 0);
    }
  } finally {
    await server.shutdown();
  }
});

Deno.test("raw pixels of any channels, as bytes, floats of 0–1 or floats of 0–255, give one picture", async () => {
  const { pixels, width, height } = expectedPicture("smooth.png");
  const rgba = new Uint8ClampedArray(width * height * 4).fill(255);
  for (let i = 0; i < pixels.length; i++) rgba[Math.floor(i / 3) * 4 + i % 3] = pixels[i];
  const inputs = [
    { data: pixels, width, height },
    { data: rgba, width, height, channels: 4 },
    { data: Float32Array.from(pixels, (p) => p / 255), width, height },
    { data: Float64Array.from(pixels), width, height, channels: 3 },
    new ImageData(rgba, width, height),
  ];
  for (const input of inputs) {
    assertEquals(pixelDistance(await readPicture(input), expectedPicture("smooth.png")), 0);
  }
  const grey = await readPicture({ data: new Uint8Array([0, 200]), width: 2, height: 1 });
  assertEquals([...grey.pixels], [0, 0, 0, 200, 200, 200]);
  const faint = await readPicture({ data: new Uint8Array([0, 51]), width: 1, height: 1 });
  assertEquals([...faint.pixels], [204, 204, 204]);
});

Deno.test("raw pixels of the wrong length, type or range are refused with the numbers", async () => {
  const wrong: [unknown, RegExp][] = [
    [{ data: new Uint8Array(11), width: 2, height: 2 }, /11 values.*2 × 2/],
    [{ data: new Uint8Array(12), width: 2, height: 2, channels: 4 }, /channels: 4/],
    [{ data: [1, 2, 3], width: 1, height: 1 }, /bytes or floats/],
    [{ data: new Uint8Array(3), width: 0.5, height: 2 }, /0\.5 × 2/],
    [{ data: new Uint8Array(12), width: "2", height: 2 }, /"2" × 2/],
    [{ data: new Float32Array([0, NaN, 0]), width: 1, height: 1 }, /NaN/],
    [{ data: new Float32Array([0, 256, 0]), width: 1, height: 1 }, /256/],
    [null, /path, a URL/],
    [42, /path, a URL/],
  ];
  for (const [input, message] of wrong) {
    const error = await assertRejects(() => readPicture(input as never), InvalidArgument);
    assertMatch(error.message, message);
  }
});

Deno.test("a field of raw pixels, samples or frames that nobody knows is refused, so that none is misspelt in silence", async () => {
  const pixels = { data: new Uint8Array(12), width: 2, height: 2 };
  const samples = { data: new Int16Array(4000), sampleRate: 16_000 };
  await assertRejects(() => readPicture({ ...pixels, chanels: 3 } as never), UnknownOption, '"chanels"');
  await assertRejects(() => readSound({ ...samples, channel: 2 } as never), UnknownOption, '"channel"');
  const video = { frames: [pixels], rate: 2 };
  await assertRejects(() => readVideo(video as never, { frames: 2, sound: false }), UnknownOption, '"rate"');
  await readPicture({ ...pixels, channels: undefined });
});

Deno.test("bytes that were handed over to a worker meanwhile are a typed error", async () => {
  const bytes = new Uint8Array(100);
  structuredClone(bytes, { transfer: [bytes.buffer] });
  await assertRejects(() => readPicture(bytes), InvalidArgument, "handed over");
  await assertRejects(() => readSound(bytes.buffer), InvalidArgument, "handed over");
});

Deno.test("a picture of too many pixels is refused by its header alone, in every format", async () => {
  const u16 = (bytes: Uint8Array, at: number, value: number, little: boolean) =>
    new DataView(bytes.buffer).setUint16(at, value, little);
  const png = mediaBytes("smooth.png");
  new DataView(png.buffer).setUint32(16, 100_000);
  new DataView(png.buffer).setUint32(20, 100_000);
  const gif = mediaBytes("still.gif");
  u16(gif, 6, 65_535, true);
  u16(gif, 8, 65_535, true);
  const jpeg = mediaBytes("smooth.jpg");
  const frame = jpeg.findIndex((byte, i) => byte === 0xff && jpeg[i + 1] === 0xc0);
  u16(jpeg, frame + 5, 65_000, false);
  u16(jpeg, frame + 7, 65_000, false);
  const webp = mediaBytes("alpha.webp"); // VP8X or VP8L: a file of the largest size
  webp.set([0xff, 0xff, 0xff, 0x0f], 21);
  const avif = mediaBytes("smooth.avif");
  const size = new TextDecoder("latin1").decode(avif).indexOf("ispe") + 8;
  new DataView(avif.buffer).setUint32(size, 60_000);
  new DataView(avif.buffer).setUint32(size + 4, 60_000);
  const cmyk = mediaBytes("cmyk.jpg");
  const cmykFrame = cmyk.findIndex((byte, i) => byte === 0xff && cmyk[i + 1] === 0xc0);
  u16(cmyk, cmykFrame + 5, 8000, false);
  u16(cmyk, cmykFrame + 7, 5000, false);
  assertMatch(
    (await assertRejects(() => readPicture(cmyk), MediaError)).message,
    /40000000 pixels; 30000000/,
  );
  const heic = mediaBytes("smooth.heic");
  const heicSize = new TextDecoder("latin1").decode(heic).indexOf("ispe") + 8;
  new DataView(heic.buffer).setUint32(heicSize, 60_000);
  new DataView(heic.buffer).setUint32(heicSize + 4, 60_000);
  for (const bomb of [png, gif, jpeg, webp, avif, heic]) {
    const error = await assertRejects(() => readPicture(bomb), MediaError);
    assertEquals(error.code, "media_too_large");
    assertMatch(error.message, /\d+ × \d+ = \d+ pixels; 100000000 are allowed/);
  }
});

Deno.test("a JPEG whose scan header says what viewers pass over is read as they read it, if it is whole", async () => {
  const jpeg = mediaBytes("smooth.jpg");
  const odd = jpeg.slice();
  const scan = odd.findIndex((byte, i) => byte === 0xff && odd[i + 1] === 0xda);
  odd[scan + 5 + 2 * odd[scan + 4] + 1] = 0; // its last coefficient is 0 instead of 63, as some cameras write
  assertEquals(await readPicture(odd), await readPicture(jpeg));
  for (const cut of [odd.subarray(0, -2), odd.subarray(0, -200)]) {
    assertEquals((await assertRejects(() => readPicture(cut), MediaError)).code, "media_damaged");
  }
});

/** A grey progressive JPEG of one colour, whose first scan is followed by so many that change nothing. */
function progressive(width: number, height: number, scans: number): Uint8Array {
  const bytes: number[] = [0xff, 0xd8];
  const segment = (marker: number, ...content: number[]) =>
    bytes.push(0xff, marker, content.length + 2 >> 8, content.length + 2 & 255, ...content);
  const codes = (kind: number, value: number) => segment(0xc4, kind, 1, ...Array(15).fill(0), value);
  segment(0xdb, 0, ...Array(64).fill(1));
  segment(0xc2, 8, height >> 8, height & 255, width >> 8, width & 255, 1, 1, 0x11, 0);
  codes(0x00, 0); // "0": the level of the block before
  codes(0x10, 0xe0); // "0" and 14 bits: a run of blocks without detail
  const blocks = Math.ceil(width / 8) * Math.ceil(height / 8);
  segment(0xda, 1, 1, 0, 0, 0, 0);
  for (let i = 0; i < blocks; i += 8) bytes.push(0);
  for (let scan = 0; scan < scans; scan++) {
    segment(0xda, 1, 1, 0, 1 + scan % 63, 1 + scan % 63, 0);
    for (let left = blocks; left > 0; left -= 32_767) bytes.push(0x7f, 0xff, 0); // 15 ones and the stuffed zero
  }
  bytes.push(0xff, 0xd9);
  return Uint8Array.from(bytes);
}

Deno.test("a JPEG of thousands of scans over many pixels is refused by their number, one of few is read", async () => {
  const few = await readPicture(progressive(64, 48, 70));
  assertEquals([few.width, few.height, new Set(few.pixels)], [64, 48, new Set([128])]);
  const many = progressive(4000, 3000, 400);
  const began = cpuMilliseconds();
  const error = await assertRejects(() => readPicture(many), MediaError);
  assertEquals(error.code, "media_too_large");
  assertMatch(error.message, /12000000 pixels 401 times; 2000000000 pixels/);
  assert(cpuMilliseconds() - began < 1000);
});

Deno.test("a GIF without its last byte, which says only that it ends, has all its frames", async () => {
  for (const name of ["still.gif", "animated.gif"]) {
    const bytes = mediaBytes(name);
    assertEquals(bytes.at(-1), 0x3b);
    const { frames } = parseGif(bytes.subarray(0, -1));
    assertEquals(frames.length, parseGif(bytes).frames.length);
    assertEquals(await readPicture(bytes.subarray(0, -1)), await readPicture(bytes));
    assertThrows(() => parseGif(bytes.subarray(0, -2)), MediaError, "ends early");
  }
});

Deno.test("a picture cut at any byte is refused, or whole where only what follows its pixels is missing", async () => {
  const names = [
    "smooth.png",
    "grey16.png",
    "palette_transparent.png",
    "smooth.jpg",
    "progressive.jpg",
    "cmyk.jpg",
    "lossy.webp",
    "lossless.webp",
    "alpha.webp",
    "smooth.avif",
    "smooth.heic",
    "tiles.heic",
    "still.gif",
    "animated.gif",
    "animated.webp",
  ];
  for (const name of names) {
    const bytes = mediaBytes(name);
    const whole = await readPicture(bytes);
    const step = Math.ceil(bytes.length / 31);
    let refused = 0, kept = 0;
    for (let length = bytes.length - 1; length >= 0; length -= step) {
      try {
        const picture = await readPicture(bytes.subarray(0, length));
        assertEquals(pixelDistance(picture, whole), 0, `${name}, ${length} of ${bytes.length} bytes`);
        kept++;
      } catch (error) {
        if (!(error instanceof MediaError)) throw error;
        const codes = ["media_damaged", "media_empty", "unknown_media", "unsupported_media"];
        assert(codes.includes(error.code), `${name}: ${error.message}`);
        refused++;
      }
    }
    assert(kept <= 6 && refused >= 24, `${name}: ${refused} refused, ${kept} whole`);
  }
});

Deno.test("files that are no pictures are refused with what they are", async () => {
  const cases: [Uint8Array, string, RegExp][] = [
    [new TextEncoder().encode("<!doctype html><p>not found"), "unknown_media", /no known format/],
    [new TextEncoder().encode("<svg xmlns='http://www.w3.org/2000/svg'/>"), "unsupported_media", /SVG/],
    [new TextEncoder().encode("BM and more"), "unsupported_media", /BMP/],
    [
      new Uint8Array([0, 0, 0, 24, ...new TextEncoder().encode("ftypheic____mif1")]),
      "media_damaged",
      /HEIC/,
    ],
    [mediaBytes("s16.wav"), "unsupported_media", /WAV/],
    [new Uint8Array(), "media_empty", /empty/],
  ];
  for (const [bytes, code, message] of cases) {
    const error = await assertRejects(() => readPicture(bytes), MediaError);
    assertEquals(error.code, code);
    assertMatch(error.message, message);
  }
  assertEquals(
    (await assertRejects(() => readPicture("/no/such/file.png"), MediaError)).code,
    "media_missing",
  );
  await assertRejects(() => readPicture("ftp://example.com/a.png"), InvalidArgument);
  const url = await assertRejects(() => readPicture("data:image/png;base64,!!!"), MediaError);
  assertEquals(url.code, "media_unreadable");
  const gone = await assertRejects(
    () => readPicture("blob:null/00000000-0000-0000-0000-000000000000"),
    MediaError,
  );
  assertEquals(gone.code, "media_unreadable");
});

Deno.test("damaged bytes of a picture or an animation give an error or a picture, never a crash or a hang", async () => {
  const names = ["smooth.png", "palette_transparent.png", "smooth.jpg", "progressive.jpg", "cmyk.jpg"];
  names.push("lossy.webp", "lossless.webp", "alpha.webp", "smooth.avif", "orientation7.avif");
  names.push("smooth.heic", "alpha.heic", "tiles.heic", "turned270flipped.heic");
  names.push("still.gif", "animated.gif", "animated.webp");
  for (const [i, name] of names.entries()) {
    for (const bytes of damagedCopies(mediaBytes(name), 40, i)) {
      try {
        const { pixels, width, height } = await readPicture(bytes);
        assertEquals(pixels.length, width * height * 3);
        if (!name.startsWith("animated")) continue;
        for await (const _ of (await readVideo(bytes, { frames: 9, sound: false })).frames);
      } catch (error) {
        assert(error instanceof MediaError, `${name}: ${error}`);
      }
    }
  }
});
