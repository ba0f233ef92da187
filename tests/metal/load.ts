/** Loads models on "metal" over software Metal. */
import { loadWith } from "../../src/engine/load.ts";
import { productLibrary } from "./metal.ts";

/** Options under which results are compared with golden values. */
export const EXACT = { device: "metal", precision: "exact", kvCache: "f32" } as const;

/** Loads a model on "metal"; the library is the test file's alone, since each opens its own. */
export async function loadMetal(
  folder: string,
  options: Parameters<typeof loadWith>[1] = EXACT,
  internals: Parameters<typeof loadWith>[2] = {},
): Promise<Awaited<ReturnType<typeof loadWith>>> {
  const before = Deno.env.get("MARKBASE_DYLIB");
  Deno.env.set("MARKBASE_DYLIB", await productLibrary());
  try {
    return await loadWith(folder, options, internals);
  } finally {
    if (before === undefined) Deno.env.delete("MARKBASE_DYLIB");
    else Deno.env.set("MARKBASE_DYLIB", before);
  }
}
