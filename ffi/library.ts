/** Finds or builds the native library, verifies it and opens it, once per process (and once per Worker). */
import { buildLibrary } from "../dylib/build.ts";
import { sha256 } from "../dylib/sources.ts";
import { LibraryError } from "../src/errors.ts";
import { SharedRuns } from "../src/shared_runs.ts";
import { optionalEnv, requirePermission } from "./permissions.ts";
import { ABI_VERSION, symbols } from "./symbols.ts";

/** The functions of the C ABI. */
export type NativeSymbols = Deno.DynamicLibrary<typeof symbols>["symbols"];

/** The opened library. */
export interface NativeLibrary {
  /** the functions, blocking and nonblocking */
  symbols: NativeSymbols;
  /** absolute path of the file */
  path: string;
  /** of the file, hexadecimal */
  sha256: string;
}

/** Options of `openLibrary`; they matter for the first call only. */
export interface LibraryOptions {
  /** cache folder; default: `MARKBASE_CACHE`, else the platform's */
  cache?: string;
  /** units compiled so far, of how many; called only where the library has to be built */
  onProgress?: (done: number, total: number) => void;
  /** ends waiting for a build, and the build once nobody waits for it any more */
  signal?: AbortSignal;
}

/** Before this version, Deno did not keep the buffers of nonblocking calls alive. */
const LEAST_DENO = [2, 7, 6];

let opened: NativeLibrary | undefined;
const openings = new SharedRuns<NativeLibrary>();

/**
 * The native library: the one that `MARKBASE_DYLIB` names, else the one in the cache, else built now. Rejects with
 * `LibraryError`, `MissingPermission` or the signal's reason; after a failure the next call tries again.
 */
export async function openLibrary(options: LibraryOptions = {}): Promise<NativeLibrary> {
  opened ??= await openings.share("library", options.signal, (signal) => find({ ...options, signal }));
  return opened;
}

async function find(options: LibraryOptions): Promise<NativeLibrary> {
  checkDenoVersion(Deno.version.deno);
  const named = await optionalEnv("MARKBASE_DYLIB");
  if (named !== undefined) {
    return await open(named, await hashOf(named), "Unset MARKBASE_DYLIB to build one.");
  }
  const built = await buildLibrary(options);
  return await open(built.path, built.sha256, "Remove the folder that holds it to build it again.");
}

/** Throws `LibraryError` ("old_deno") for a Deno that is too old to call the library safely. */
export function checkDenoVersion(version: string): void {
  const parts = version.split(/[.+-]/).slice(0, 3).map(Number);
  const at = parts.findIndex((part, i) => part !== LEAST_DENO[i]);
  if (at < 0 || parts[at] > LEAST_DENO[at]) return;
  throw new LibraryError(
    "old_deno",
    `Deno ${version} may free buffers that the native library still uses. ` +
      `Update to Deno ${LEAST_DENO.join(".")} or later with \`deno upgrade\`.`,
  );
}

async function hashOf(path: string): Promise<string> {
  await requirePermission({ name: "read", path }, "to verify the library that MARKBASE_DYLIB names");
  try {
    return await sha256(await Deno.readFile(path));
  } catch (cause) {
    throw new LibraryError(
      "library_not_found",
      `MARKBASE_DYLIB names ${path}, which cannot be read. Correct or unset it.`,
      { cause },
    );
  }
}

/** Opens a file; `next` says what can be done where the system refuses it. */
async function open(path: string, hash: string, next: string): Promise<NativeLibrary> {
  const folder = path.replace(/\/dylib\/[^/]*\/[^/]*$/, ""); // the cache folder, or the file itself
  await requirePermission({ name: "ffi", path: folder }, "to open its native library");
  let library: Deno.DynamicLibrary<typeof symbols>;
  try {
    library = Deno.dlopen(path, symbols);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new LibraryError(
      "library_unusable",
      `The native library ${path} cannot be opened: ${reason}. It may be of another version or machine. ${next}`,
      { cause },
    );
  }
  const version = library.symbols.mb_abi_version();
  if (version !== ABI_VERSION) {
    library.close();
    throw new LibraryError(
      "abi_mismatch",
      `The native library ${path} has ABI version ${version}; this markbase needs ${ABI_VERSION}. ` +
        "Unset MARKBASE_DYLIB, or build it from the same version.",
    );
  }
  return { symbols: library.symbols, path, sha256: hash };
}
