/**
 * Builds the product's library with the Metal device against software Metal and prints its path last, so that
 * `MARKBASE_DYLIB=$(deno task -q softmetal | tail -1)` with `device: "metal"` works on Linux.
 */
import { buildLibrary, type BuildOptions, type BuiltLibrary } from "../../dylib/build.ts";
import { softMetal } from "./build.ts";

/** As `buildLibrary`, with the metal device over software Metal. Sets `CXX`, since metal-cpp needs clang. */
export async function buildSoftMetalLibrary(options: BuildOptions = {}): Promise<BuiltLibrary> {
  const soft = await softMetal();
  Deno.env.set("CXX", soft.compiler);
  const metal = {
    systems: ["linux"],
    flags: soft.compileFlags,
    link: soft.linkFlags,
    needs: "gpu",
  };
  return await buildLibrary({ ...options, devices: { ...options.devices, metal } });
}

if (import.meta.main) {
  const built = await buildSoftMetalLibrary({
    onProgress: (done, total) => console.error(`compiled ${done} of ${total}`),
  });
  console.log(built.path);
}
