import { assert, assertEquals, assertRejects } from "@std/assert";
import { MediaError } from "../../mod.ts";
import { cutPatches, targetSize } from "../../src/media/patches.ts";
import { readPicture } from "../../src/media/picture.ts";
import { resizeBicubic } from "../../src/media/resize.ts";
import { fixtureModel, readTensors, sharedTiny } from "../support/models.ts";
import { expectedPicture, mediaPath, pixelDistance, sha256 } from "./support.ts";

const ROWS = ["e2b-mm-clipped", "e2b-mm-unclipped", "31b-mm", "12b"];

/** Golden pictures of a fixture: [file, grid width, grid height, SHA-256 of the patches' bytes]. */
function goldenPictures(folder: string): [string, number, number, string][] {
  const { images, video } = JSON.parse(Deno.readTextFileSync(`${folder}/golden.json`));
  return [
    ...images.map((image: Record<string, unknown>) => [
      image.file,
      image.grid_w,
      image.grid_h,
      image.pixel_values_sha256_of_u8,
    ]),
    ...video.sampled_indices.map((index: number, i: number) => [
      video.frames[index],
      video.grid_w,
      video.grid_h,
      video.pixel_values_sha256_of_u8[i],
    ]),
  ];
}

for (const row of ROWS) {
  const folder = fixtureModel(row);
  Deno.test({
    name: `${row}: every picture and video frame gives the golden patches byte for byte`,
    ignore: folder === null,
    fn: async () => {
      const { image_processor: processor } = JSON.parse(
        Deno.readTextFileSync(`${folder}/processor_config.json`),
      );
      const geometry = {
        patchSize: processor.patch_size,
        poolingKernelSize: processor.pooling_kernel_size,
        merged: row === "12b",
      };
      for (const [file, columns, rows, sha] of goldenPictures(folder!)) {
        const patches = await cutPatches(
          await readPicture(`${folder}/${file}`),
          processor.max_soft_tokens,
          geometry,
        );
        assertEquals([patches.columns, patches.rows], [columns, rows], file);
        const pixels = new Uint8Array(patches.pixels);
        assertEquals(new Uint8Array(await crypto.subtle.digest("SHA-256", pixels)).toHex(), sha, file);
      }
    },
  });
}

const golden = sharedTiny("golden");
Deno.test({
  name: "the small model's pictures give the golden patches and positions",
  ignore: golden === null,
  fn: async () => {
    for (const [name, file] of [["image_scene", "scene.png"], ["image_wide", "wide.png"]]) {
      const tensors = await readTensors(`${golden}/${name}.safetensors`);
      const geometry = { patchSize: 16, poolingKernelSize: 3, merged: false };
      const patches = await cutPatches(await readPicture(`${golden}/${file}`), 70, geometry);
      assertEquals([...patches.pixels], [...tensors.get("pixels_u8_0")!.data]);
      assertEquals([...patches.positions], [...tensors.get("positions_0")!.data]);
    }
  },
});

const E2B = { patchSize: 16, poolingKernelSize: 3, merged: false };

Deno.test("sizes keep the ratio, are whole soft tokens, and stay within the budget", () => {
  assertEquals(targetSize(960, 672, 280, E2B), { width: 960, height: 672 });
  assertEquals(targetSize(4000, 3000, 280, E2B), { width: 912, height: 672 });
  assertEquals(targetSize(384, 384, 70, E2B), { width: 384, height: 384 });
  for (const budget of [70, 140, 280, 560, 1120]) {
    for (const [width, height] of [[1, 1], [3, 4], [1920, 1080], [37, 1200], [5000, 5000]]) {
      const size = targetSize(width, height, budget, E2B);
      assertEquals([size.width % 48, size.height % 48], [0, 0]);
      assert(size.width * size.height <= budget * 48 * 48);
    }
  }
});

Deno.test("a picture so narrow and tall that its widened rows would fill memory is refused with its size", async () => {
  const picture = { pixels: new Uint8Array(3 * 2_100_000), width: 1, height: 2_100_000 };
  const geometry = { patchSize: 16, poolingKernelSize: 3, merged: false };
  const error = await assertRejects(() => cutPatches(picture, 280, geometry), MediaError, "1 × 2100000");
  assertEquals(error.code, "media_too_large");
  const wide = { ...picture, width: 2_100_000, height: 1 };
  assertEquals((await cutPatches(wide, 280, geometry)).columns, 280 * 3);
});

Deno.test("18000 sizes of pictures and budgets give the reference's sizes", async () => {
  const { sides, tokens, sha256: digest, some } =
    JSON.parse(await Deno.readTextFile(mediaPath("reference.json"))).sizes;
  const lines: string[] = [];
  for (const width of sides) {
    for (const height of sides) {
      for (const budget of tokens) {
        const size = targetSize(width, height, budget, E2B);
        lines.push(`${width} ${height} ${budget} -> ${size.width} ${size.height}`);
      }
    }
  }
  assertEquals(lines.filter((_, i) => i % 997 === 0), some);
  assertEquals([lines.length, await sha256(new TextEncoder().encode(lines.join("\n")))], [18_000, digest]);
});

Deno.test("a line of 1 × 10000 pixels becomes one column of soft tokens, within the budget", () => {
  assertEquals(targetSize(1, 10_000, 70, E2B), { width: 48, height: 70 * 48 });
  assertEquals(targetSize(10_000, 1, 70, E2B), { width: 70 * 48, height: 48 });
  assertEquals(targetSize(1, 90, 70, E2B), { width: 48, height: 70 * 48 });
});

Deno.test("patches are row-major over the grid, rows of pixels inside, and merged ones cover the pooled square", async () => {
  // 96 × 96 at 4 soft tokens stays as it is: every pixel says where it was.
  const pixels = new Uint8Array(96 * 96 * 3);
  for (let y = 0; y < 96; y++) for (let x = 0; x < 96; x++) pixels.set([x, y, 7], (y * 96 + x) * 3);
  const picture = { pixels, width: 96, height: 96 };
  for (const merged of [false, true]) {
    const side = merged ? 48 : 16;
    const patches = await cutPatches(picture, 4, { ...E2B, merged });
    assertEquals([patches.columns, patches.rows], [96 / side, 96 / side]);
    for (let i = 0; i < patches.columns * patches.rows; i++) {
      const [px, py] = patches.positions.subarray(2 * i, 2 * i + 2);
      assertEquals([px, py], [i % patches.columns, Math.floor(i / patches.columns)]);
      for (const [x, y] of [[0, 0], [side - 1, 0], [3, side - 1]]) {
        const at = (i * side * side + y * side + x) * 3;
        assertEquals([...patches.pixels.subarray(at, at + 3)], [px * side + x, py * side + y, 7]);
      }
    }
  }
});

Deno.test("a resize keeps flat colour, and one to the same size changes nothing", async () => {
  const smooth = expectedPicture("smooth.png");
  assertEquals(pixelDistance(await resizeBicubic(smooth, smooth.width, smooth.height), smooth), 0);
  for (const [width, height] of [[7, 3], [200, 1], [33, 77]]) {
    const flat = { pixels: new Uint8Array(50 * 20 * 3).fill(201), width: 50, height: 20 };
    assert((await resizeBicubic(flat, width, height)).pixels.every((value) => value === 201));
  }
});

Deno.test("a resize is within two steps of bicubic interpolation in 64-bit floats", async () => {
  const source = expectedPicture("smooth.png");
  const cubic = (x: number) => {
    x = Math.abs(x);
    return x < 1 ? 1.5 * x ** 3 - 2.5 * x ** 2 + 1 : x < 2 ? -0.5 * x ** 3 + 2.5 * x ** 2 - 4 * x + 2 : 0;
  };
  const weights = (from: number, to: number, i: number) => {
    const scale = from / to, stretch = Math.max(1, scale);
    const all = Array.from({ length: from }, (_, j) => cubic((j + 0.5 - (i + 0.5) * scale) / stretch));
    const sum = all.reduce((a, b) => a + b);
    return all.map((w) => w / sum);
  };
  for (const [width, height] of [[24, 20], [96, 60], [13, 77]]) {
    const result = await resizeBicubic(source, width, height);
    let far = 0;
    for (let y = 0; y < height; y++) {
      const down = weights(source.height, height, y);
      for (let x = 0; x < width; x++) {
        const across = weights(source.width, width, x);
        let exact = 0;
        down.forEach((wy, sy) => {
          if (wy === 0) return;
          across.forEach((wx, sx) => exact += wy * wx * source.pixels[(sy * source.width + sx) * 3 + 1]);
        });
        const distance = Math.abs(
          result.pixels[(y * width + x) * 3 + 1] - Math.min(255, Math.max(0, exact)),
        );
        assert(distance <= 2, `(${x}, ${y}) of ${width} × ${height}: ${distance}`);
        if (distance > 1) far++;
      }
    }
    assert(far <= width * height / 1000, `${far} pixels are more than one step away`);
  }
});

Deno.test("timers have their turns while a large picture is read and resized, and an abort ends it", async () => {
  const data = new Uint8Array(4000 * 3000 * 3); // what a telephone takes
  const input = { data, width: 4000, height: 3000 };
  let turns = 0;
  const timer = setInterval(() => turns++, 1);
  try {
    const picture = await readPicture(input);
    await cutPatches(picture, 280, { ...E2B, merged: false });
    assert(turns >= 5, `${turns} turns`);
    const controller = new AbortController();
    const reason = new Error("enough");
    setTimeout(() => controller.abort(reason), 1);
    const { signal } = controller;
    assertEquals(await cutPatches(picture, 280, E2B, signal).catch((error) => error), reason);
    const again = new AbortController();
    setTimeout(() => again.abort(reason), 1);
    assertEquals(await readPicture(input, again.signal).catch((error) => error), reason);
  } finally {
    clearInterval(timer);
  }
});
