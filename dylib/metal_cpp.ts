/**
 * Fetches metal-cpp, Apple's C++ headers for Metal (Apache-2.0), into the cache folder. They come inside a Python
 * package, by name and version through pip, and are checked against the digest below; nothing of the package itself
 * is run.
 */
import { LibraryError } from "../src/errors.ts";
import { cacheFolder } from "../ffi/cache_folder.ts";
import { optionalEnv, requirePermission } from "../ffi/permissions.ts";
import { exists } from "./disk.ts";
import { sha256 } from "./sources.ts";

const PACKAGE = "pymetal-cpp==0.1.5";
const ARCHIVE = "pymetal_cpp-0.1.5.tar.gz";
const SHA256 = "1118062f635277a2781659fbc4e7e5bac7d565d6948a3461c3b04d6425c15a0e";
const INSIDE = "pymetal_cpp-0.1.5/thirdparty/metal-cpp";

/**
 * The folder that holds `Metal/Metal.hpp` and `Foundation/Foundation.hpp`, to be given to the compiler as a system
 * include folder: `METAL_CPP_DIR`, else the cache, else fetched now with pip. Throws `LibraryError`
 * ("no_metal_headers") or `MissingPermission`.
 */
export async function metalCppHeaders(cache?: string): Promise<string> {
  const named = await optionalEnv("METAL_CPP_DIR");
  if (named !== undefined) {
    if (await exists(`${named}/Metal/Metal.hpp`)) return named;
    throw failure(`METAL_CPP_DIR names ${named}, which has no Metal/Metal.hpp`);
  }
  const folder = `${await cacheFolder(cache)}/metal-cpp`;
  const headers = `${folder}/${SHA256.slice(0, 16)}`;
  if (await exists(`${headers}/Metal/Metal.hpp`)) return headers;

  await requirePermission(
    { name: "write", path: folder },
    "to keep the metal-cpp headers in its cache folder",
  );
  await Deno.mkdir(folder, { recursive: true });
  const work = await Deno.makeTempDir({ dir: folder, suffix: ".work" });
  try {
    await download(work);
    const found = await sha256(await Deno.readFile(`${work}/${ARCHIVE}`));
    if (found !== SHA256) throw failure(`${ARCHIVE} has the SHA-256 ${found} instead of ${SHA256}`);
    await run("tar", ["-xzf", `${work}/${ARCHIVE}`, "-C", work, INSIDE]);
    try {
      await Deno.rename(`${work}/${INSIDE}`, headers);
    } catch (error) {
      if (!await exists(`${headers}/Metal/Metal.hpp`)) throw error; // otherwise another process was faster
    }
  } finally {
    await Deno.remove(work, { recursive: true });
  }
  return headers;
}

async function download(folder: string): Promise<void> {
  const args = ["-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", folder, PACKAGE];
  try {
    await run("python3", [...args, "--no-build-isolation"]);
  } catch (error) {
    if (!(error instanceof LibraryError)) throw error;
    // pip also prepares the package's metadata; where its build tools are missing, isolation lets pip fetch them.
    await run("python3", args);
  }
}

function failure(reason: string, cause?: unknown): LibraryError {
  return new LibraryError(
    "no_metal_headers",
    `The metal-cpp headers cannot be had: ${reason}. Set METAL_CPP_DIR to a folder with Apple's metal-cpp.`,
    { cause },
  );
}

async function run(command: string, args: string[]): Promise<void> {
  await requirePermission(
    { name: "run", command },
    "to fetch the metal-cpp headers that its Metal device needs",
  );
  let result: Deno.CommandOutput;
  try {
    result = await new Deno.Command(command, { args, stdin: "null", stdout: "null", stderr: "piped" })
      .output();
  } catch (cause) {
    throw failure(`${command} cannot be started`, cause);
  }
  if (result.success) return;
  const lines = new TextDecoder().decode(result.stderr).trim().split("\n");
  throw failure(`${command} ended with status ${result.code}: ${lines.slice(-4).join("\n")}`);
}
