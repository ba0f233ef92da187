/** The module of a codec, compiled but not instantiated. */
export function wasmOf(codec: "png" | "jpeg" | "webp" | "avif" | "heic"): Promise<WebAssembly.Module>;
