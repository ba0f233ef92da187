/**
 * The codecs' WebAssembly modules. Importing the source of a module needs no permission, unlike reading its file; TypeScript does not
 * know the syntax yet, so this file is JavaScript.
 */

/** PNG decoder. */
export const png = () => import.source("npm:@jsquash/png@3.1.1/codec/pkg/squoosh_png_bg.wasm");
/** JPEG decoder. */
export const jpeg = () => import.source("npm:@jsquash/jpeg@1.6.0/codec/dec/mozjpeg_dec.wasm");
/** WebP decoder. */
export const webp = () => import.source("npm:@jsquash/webp@1.5.0/codec/dec/webp_dec.wasm");
/** AVIF decoder. */
export const avif = () => import.source("npm:@jsquash/avif@2.1.1/codec/dec/avif_dec.wasm");
