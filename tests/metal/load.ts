/** Loads models on "metal" over software Metal. */
import { loadWith } from "../../src/engine/load.ts";
import { withEnvironment } from "../support/environment.ts";
import { productLibrary } from "./metal.ts";

/** Options under which results are compared with golden values. */
export const EXACT = { device: "metal", precision: "exact", kvCache: "f32" } as const;

/** Loads a model on "metal"; the library is the test file's alone, since each opens its own. */
export async function loadMetal(
  folder: string,
  options: Parameters<typeof loadWith>[1] = EXACT,
  internals: Parameters<typeof loadWith>[2] = {},
): Promise<Awaited<ReturnType<typeof loadWith>>> {
  const library = { MARKBASE_DYLIB: await productLibrary() };
  return await withEnvironment(library, () => loadWith(folder, options, internals));
}
