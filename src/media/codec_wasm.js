/**
 * The codecs' WebAssembly modules. Importing the source of a module needs no permission, unlike reading its file; TypeScript does not
 * know the syntax yet, so this file is JavaScript.
 */

const PATHS = {
  png: "npm:@jsquash/png@3.1.1/codec/pkg/squoosh_png_bg.wasm",
  jpeg: "npm:@jsquash/jpeg@1.6.0/codec/dec/mozjpeg_dec.wasm",
  webp: "npm:@jsquash/webp@1.5.0/codec/dec/webp_dec.wasm",
  avif: "npm:@jsquash/avif@2.1.1/codec/dec/avif_dec.wasm",
  heic: "npm:libheif-js@1.23.2/libheif-wasm/libheif.wasm",
};

/** The module of a codec. */
export const wasmOf = (codec) => import.source(PATHS[codec]);
