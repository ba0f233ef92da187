/** The packages that `src/media/packages.ts` imports by computed names, as literals: the lock file lists what stands here. */
export const packages: readonly (() => Promise<unknown>)[] = [
  () => import("npm:@jsquash/png@3.1.1/decode.js"),
  () => import("npm:@jsquash/jpeg@1.6.0/decode.js"),
  () => import("npm:@jsquash/webp@1.5.0/decode.js"),
  () => import("npm:@jsquash/avif@2.1.1/decode.js"),
  () => import("npm:libheif-js@1.23.2/libheif-wasm/libheif.js"),
  () => import("npm:jpeg-js@0.4.4"),
  () => import("npm:mpg123-decoder@1.0.3"),
  () => import("npm:@wasm-audio-decoders/flac@0.2.11"),
  () => import("npm:ogg-opus-decoder@1.7.5"),
  () => import("npm:@wasm-audio-decoders/ogg-vorbis@0.1.20"),
];
