/** HEIC pictures, as Apple's devices store them, by libheif. */
import { MediaError } from "../errors.ts";
import type { Decoded } from "./codecs.ts";

/** What `libheif-js` exports: makes an instance of the library. */
export type Libheif = (options: {
  instantiateWasm(
    imports: WebAssembly.Imports,
    done: (instance: WebAssembly.Instance) => void,
  ): WebAssembly.Exports;
  print(text: string): void;
  printErr(text: string): void;
}) => Instance;

/** An error, or what its name says. */
interface Outcome {
  code?: { value: number };
  message?: string;
}

interface Instance {
  heif_context_alloc(): unknown;
  heif_context_read_from_memory(context: unknown, bytes: Uint8Array): Outcome;
  heif_js_context_get_primary_image_handle(context: unknown): Outcome;
  heif_js_decode_image2(
    handle: unknown,
    colorspace: unknown,
    chroma: unknown,
  ): (Outcome & DecodedImage) | Promise<Outcome & DecodedImage>;
  /** `image`: its address; with no room for them it says how many there are */
  _heif_image_get_decoding_warnings(image: number, first: 0, warnings: 0, room: 0): number;
  heif_colorspace: { heif_colorspace_RGB: unknown };
  heif_chroma: { heif_chroma_interleaved_RGBA: unknown };
}

interface DecodedImage {
  /** where the library holds it */ image: { $$: { ptr: number } };
  /** the only one, with all colours */ channels: {
    width: number;
    height: number;
    /** bytes from row to row */ stride: number;
    data: Uint8Array;
  }[];
}

/** `heif_error_Unsupported_filetype` and `heif_error_Unsupported_feature`. */
const UNSUPPORTED = [3, 4];

/** Decodes the primary picture, turned, mirrored and cropped as the file says. Throws what libheif says of a file that it refuses. */
export async function decodeHeic(
  libheif: Libheif,
  module: WebAssembly.Module,
  bytes: Uint8Array,
): Promise<Decoded> {
  // A fresh instance for each picture: its memory never shrinks, and nothing of it need be given back.
  const library = libheif({
    instantiateWasm(imports, done) {
      const instance = new WebAssembly.Instance(module, imports);
      done(instance);
      return instance.exports;
    },
    print() {},
    printErr() {},
  });
  const context = library.heif_context_alloc();
  check(library.heif_context_read_from_memory(context, bytes));
  const handle = check(library.heif_js_context_get_primary_image_handle(context));
  const { heif_colorspace_RGB: rgb } = library.heif_colorspace;
  const { heif_chroma_interleaved_RGBA: rgba } = library.heif_chroma;
  const { image, channels: [{ width, height, stride, data }] } = check(
    await library.heif_js_decode_image2(handle, rgb, rgba),
  );
  // The library leaves a tile that it cannot decode black, with a warning.
  if (library._heif_image_get_decoding_warnings(image.$$.ptr, 0, 0, 0) > 0) {
    throw new Error("a part of its pixels cannot be decoded");
  }
  const tight = new Uint8Array(width * height * 4);
  for (let y = 0; y < height; y++) {
    tight.set(data.subarray(y * stride, y * stride + width * 4), y * width * 4);
  }
  return { data: tight, width, height };
}

function check<T extends Outcome>(outcome: T): T {
  const code = outcome.code?.value ?? 0;
  if (code === 0) return outcome;
  const message = (outcome.message ?? "").trim();
  if (!UNSUPPORTED.includes(code)) throw new Error(message);
  throw new MediaError(
    "unsupported_media",
    `The HEIC picture cannot be read: ${message.replace(/\.?$/, ".")} Save it as JPEG or PNG.`,
  );
}
