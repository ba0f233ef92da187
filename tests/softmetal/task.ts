/**
 * Builds the product's library with the Metal device against software Metal and prints its path last, so that
 * `MARKBASE_DYLIB=$(deno task -q softmetal | tail -1)` with `device: "metal"` works on Linux.
 */
import { buildLibrary, type BuildOptions, type BuiltLibrary } from "../../dylib/build.ts";
import { withEnvironment } from "../support/environment.ts";
import { softMetal } from "./build.ts";

/** As `buildLibrary`, with the metal device over software Metal, by clang, which metal-cpp needs. */
export async function buildSoftMetalLibrary(options: BuildOptions = {}): Promise<BuiltLibrary> {
  const soft = await softMetal();
  const metal = {
    systems: ["linux"],
    flags: soft.compileFlags,
    link: soft.linkFlags,
    needs: "gpu",
  };
  const devices = { ...options.devices, metal };
  // Whatever this process builds later, and the processes that it starts, are for the usual compiler.
  return await withEnvironment({ CXX: soft.compiler }, () => buildLibrary({ ...options, devices }));
}

if (import.meta.main) {
  const built = await buildSoftMetalLibrary({
    onProgress: (done, total) => console.error(`compiled ${done} of ${total}`),
  });
  console.log(built.path);
}
