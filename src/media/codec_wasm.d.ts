/** Compiled, not instantiated. */
export function png(): Promise<WebAssembly.Module>;
/** Compiled, not instantiated. */
export function jpeg(): Promise<WebAssembly.Module>;
/** Compiled, not instantiated. */
export function webp(): Promise<WebAssembly.Module>;
/** Compiled, not instantiated. */
export function avif(): Promise<WebAssembly.Module>;
