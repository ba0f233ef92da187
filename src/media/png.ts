/** Writes PNG files: for previews and for the pictures that the project makes itself. */
// @ts-types="./codec_wasm.d.ts"
import * as wasm from "./codec_wasm.js";
import type { Picture } from "./resize.ts";

/** The bytes of a PNG file. */
export async function encodePng({ pixels, width, height }: Picture): Promise<Uint8Array> {
  const { default: encode, init } = await import("npm:@jsquash/png@3.1.1/encode.js") as unknown as {
    default(image: { data: Uint8ClampedArray; width: number; height: number }): Promise<ArrayBuffer>;
    init(module: WebAssembly.Module): Promise<unknown>;
  };
  await init(await wasm.png());
  const data = new Uint8ClampedArray(width * height * 4).fill(255);
  for (let i = 0; i < width * height; i++) data.set(pixels.subarray(i * 3, i * 3 + 3), i * 4);
  return new Uint8Array(await encode({ data, width, height }));
}
