/** Writes PNG files: for previews and for the pictures that the project makes itself. */
// @ts-types="./codec_wasm.d.ts"
import { wasmOf } from "./codec_wasm.js";
import { importPackage } from "./packages.ts";
import type { Picture } from "./resize.ts";

/** The bytes of a PNG file. */
export async function encodePng({ pixels, width, height }: Picture): Promise<Uint8Array> {
  const { default: encode, init } = await importPackage<{
    default(image: { data: Uint8ClampedArray; width: number; height: number }): Promise<ArrayBuffer>;
    init(module: WebAssembly.Module): Promise<unknown>;
  }>("png encoder");
  await init(await wasmOf("png"));
  const data = new Uint8ClampedArray(width * height * 4).fill(255);
  for (let i = 0; i < width * height; i++) data.set(pixels.subarray(i * 3, i * 3 + 3), i * 4);
  return new Uint8Array(await encode({ data, width, height }));
}
