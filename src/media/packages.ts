/**
 * The decoders' packages. They are imported by computed names: Deno would fetch whatever stands as a literal in an import together with
 * this library, and text needs none of them.
 */

const PACKAGES = {
  "png": "npm:@jsquash/png@3.1.1/decode.js",
  "png encoder": "npm:@jsquash/png@3.1.1/encode.js",
  "jpeg": "npm:@jsquash/jpeg@1.6.0/decode.js",
  "cmyk": "npm:jpeg-js@0.4.4",
  "webp": "npm:@jsquash/webp@1.5.0/decode.js",
  "avif": "npm:@jsquash/avif@2.1.1/decode.js",
  "heic": "npm:libheif-js@1.23.2/libheif-wasm/libheif.js",
  "mp3": "npm:mpg123-decoder@1.0.3",
  "flac": "npm:@wasm-audio-decoders/flac@0.2.11",
  "opus": "npm:ogg-opus-decoder@1.7.5",
  "vorbis": "npm:@wasm-audio-decoders/ogg-vorbis@0.1.20",
} as const;

/** The module of a package, as whatever its importer knows it to be. */
export async function importPackage<T>(name: keyof typeof PACKAGES): Promise<T> {
  return await import(PACKAGES[name]);
}
