/** The picture decoders: packages loaded when first needed, one decode at a time, every failure a `MediaError`. */
// @ts-types="./codec_wasm.d.ts"
import { wasmOf } from "./codec_wasm.js";
import { MediaError } from "../errors.ts";
import { damagedImage } from "./headers/image.ts";
import { decodeHeic, type Libheif } from "./heic.ts";
import { importPackage } from "./packages.ts";

/** Pixels as decoders give them: height × width × (red, green, blue, alpha), not yet turned. */
export interface Decoded {
  data: Uint8Array | Uint8ClampedArray;
  width: number;
  height: number;
}

/** The decoders by name; `cmyk` is that of JPEGs of four components. */
export type Codec = "png" | "jpeg" | "webp" | "avif" | "heic" | "cmyk";
type Decode = (bytes: Uint8Array<ArrayBuffer>) => Decoded | Promise<Decoded>;

/** The emscripten decoders of `@jsquash`. */
interface Squash {
  default(data: ArrayBuffer): Promise<Decoded>;
  init(module: WebAssembly.Module, overrides?: { printErr(text: string): void }): Promise<unknown>;
}

const loaded = new Map<Codec, Promise<Decode>>();
/** Decoders keep their state in module variables, so decodes take turns. */
let turn: Promise<unknown> = Promise.resolve();

/** Decodes a picture in this thread. Rejects with `MediaError` (`media_damaged`). */
export function decodeWith(codec: Codec, bytes: Uint8Array): Promise<Decoded> {
  const result = turn.then(async () => {
    let decode = loaded.get(codec);
    if (decode === undefined) loaded.set(codec, decode = LOADERS[codec]());
    const ready = await decode.catch((cause) => {
      loaded.delete(codec); // a package that could not be fetched may come the next time
      throw codecMissing(codec === "cmyk" ? "jpeg" : codec, cause);
    });
    try {
      const decoded = await ready(bytes.slice());
      if (decoded.data.length === decoded.width * decoded.height * 4) return decoded;
      throw new Error(`the decoder gave ${decoded.data.length} bytes`);
    } catch (cause) {
      loaded.delete(codec); // its memory is as the failure left it
      if (cause instanceof MediaError) throw cause;
      throw damagedImage(codec === "cmyk" ? "jpeg" : codec, reasonOf(cause), cause);
    }
  });
  turn = result.catch(() => {});
  return result;
}

const LOADERS: Record<Codec, () => Promise<Decode>> = {
  png: async () => {
    const { default: decode, init } = await importPackage<Squash>("png");
    await init(await wasmOf("png"));
    return (bytes) => decode(bytes.buffer);
  },
  jpeg: async () => emscripten(await importPackage<Squash>("jpeg"), await wasmOf("jpeg")),
  webp: async () => emscripten(await importPackage<Squash>("webp"), await wasmOf("webp")),
  avif: async () => emscripten(await importPackage<Squash>("avif"), await wasmOf("avif")),
  heic: async () => {
    const [{ default: libheif }, module] = [
      await importPackage<{ default: Libheif }>("heic"),
      await wasmOf("heic"),
    ];
    return (bytes) => decodeHeic(libheif, module, bytes);
  },
  cmyk: async () => {
    const { default: { decode } } = await importPackage<
      { default: { decode(bytes: Uint8Array, options: object): Decoded } }
    >("cmyk");
    // The header's size was checked; these limits are the package's own.
    const options = {
      useTArray: true,
      tolerantDecoding: false,
      maxMemoryUsageInMB: 4096,
      maxResolutionInMP: 1e4,
    };
    return (bytes) => decode(bytes, options);
  },
};

/** A fresh instance for each picture: its memory never shrinks, and a failure ends it. */
function emscripten({ default: decode, init }: Squash, module: WebAssembly.Module): Decode {
  return async (bytes) => {
    const complaints: string[] = [];
    await init(module, { printErr: (text) => complaints.push(text) });
    const decoded = await decode(bytes.buffer).catch((cause) => {
      throw complaints.length > 0 ? new Error(complaints[0], { cause }) : cause;
    });
    // libjpeg goes on past missing or corrupt data and paints the rest grey. It tells its first complaint alone.
    if (complaints.length > 0 && !(HARMLESS.test(complaints[0]) && hasJpegEnd(bytes))) {
      throw new Error(complaints[0]);
    }
    return decoded;
  };
}

/** What libjpeg says of headers that some cameras write; it reads their pictures as all viewers do. */
const HARMLESS = /^(Invalid SOS parameters|Unknown Adobe color transform|Warning: unknown JFIF revision)/;

/** Whether the marker of the end comes after the last scan began. */
function hasJpegEnd(bytes: Uint8Array): boolean {
  let at = bytes.length - 2;
  while (at >= 0 && !(bytes[at] === 0xff && (bytes[at + 1] === 0xd9 || bytes[at + 1] === 0xda))) at--;
  return at >= 0 && bytes[at + 1] === 0xd9;
}

/** The error where a decoder's package cannot be loaded. */
export function codecMissing(format: string, cause: unknown): MediaError {
  const reason = cause instanceof Error ? cause.message.split("\n")[0] : String(cause);
  return new MediaError(
    "codec_missing",
    `The decoder of ${format.toUpperCase()} cannot be loaded: ${reason}. Check the network; it is fetched once.`,
    { cause },
  );
}

function reasonOf(cause: unknown): string {
  const text = cause instanceof Error ? cause.message : String(cause);
  const usual = /unwrap_throw|^Decoding error|^Encoding error|^Program terminated/.test(text);
  return usual || text === "" ? "its pixels cannot be decoded" : text.replace(/\.?\s*$/, "");
}
