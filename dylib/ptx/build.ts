/**
 * Compiles the kernels to PTX, into `<cache>/ptx/<key>/<architecture>/<kernel>.ptx`. The key is a hash of the kernels and of what
 * makes PTX of them, so kernels in the cache need no compiler. Such a folder appears complete or not at all.
 * `deno run -A dylib/ptx/build.ts [sm_90]` builds it and prints the path.
 */
import { cacheFolder } from "../../ffi/cache_folder.ts";
import { optionalEnv, requirePermission } from "../../ffi/permissions.ts";
import { LibraryError } from "../../src/errors.ts";
import { exists } from "../disk.ts";
import { flattenShader } from "../embed_shaders.ts";
import { HERE, readSources, writeSources } from "../source_files.ts";
import { PTX, sha256, SHADERS, type Sources } from "../sources.ts";
import { findPtxClang } from "./clang.ts";
import { compilePtx, MslError } from "./compile.ts";
import { kernelTexts } from "./modules.ts";

/** Options of `ptxFolder` and `buildPtx`. */
export interface PtxBuildOptions {
  /** cache folder; default: `MARKBASE_CACHE`, else the platform's */
  cache?: string;
  /** kernel families compiled so far, of how many */
  onProgress?: (done: number, total: number) => void;
  /** ends the build; the call then rejects with its reason */
  signal?: AbortSignal;
}

/** GPU generations that PTX is made for. Each serves all later ones too. */
export const ARCHITECTURES: readonly string[] = ["sm_80", "sm_90"];

/** The sources of all that PTX depends on. */
function relevant(sources: Sources): Record<string, string> {
  const files = Object.entries(sources.files);
  return Object.fromEntries(files.filter(([path]) => path.startsWith(SHADERS) || path.startsWith(PTX)));
}

/**
 * The folder in which the PTX of each architecture has or will have a folder of its own: the one that `MARKBASE_PTX` names, else
 * in the cache. Reads the sources, writes nothing.
 */
export async function ptxFolder(options: PtxBuildOptions = {}): Promise<string> {
  const named = await optionalEnv("MARKBASE_PTX");
  if (named !== undefined) return named;
  const files = relevant(await readSources(HERE));
  const key = await sha256(new TextEncoder().encode(JSON.stringify(files)));
  return `${await cacheFolder(options.cache)}/ptx/${key.slice(0, 32)}`;
}

/**
 * Makes the PTX of one architecture, unless it is in the cache; returns its folder. Throws `LibraryError` ("no_ptx_compiler",
 * "ptx_not_found", "build_failed", "source_mismatch", "source_unavailable") or `MissingPermission`.
 */
export async function buildPtx(architecture: string, options: PtxBuildOptions = {}): Promise<string> {
  if (!ARCHITECTURES.includes(architecture)) {
    throw new LibraryError(
      "build_failed",
      `There is no PTX for "${architecture}"; it is made for ${ARCHITECTURES.join(", ")}.`,
    );
  }
  const parent = await ptxFolder(options);
  const folder = `${parent}/${architecture}`;
  await requirePermission({ name: "read", path: parent }, "to read its cache folder");
  if (await exists(folder)) return folder;
  if (await optionalEnv("MARKBASE_PTX") !== undefined) {
    throw new LibraryError(
      "ptx_not_found",
      `MARKBASE_PTX names ${parent}, which has no folder ${architecture}. Correct or unset it.`,
    );
  }
  await requirePermission(
    { name: "write", path: parent },
    "to keep the kernels of its cuda device in its cache folder",
  );
  const clang = await findPtxClang();
  await Deno.mkdir(parent, { recursive: true });
  using lock = await Deno.open(`${folder}.lock`, { create: true, write: true });
  await lock.lock(true); // released by the system if this process dies
  if (await exists(folder)) return folder;
  const work = await Deno.makeTempDir({ dir: parent, prefix: `${architecture}.`, suffix: ".work" });
  try {
    const files = relevant(await readSources(HERE));
    await writeSources(files, HERE, `${work}/src/dylib`);
    await Deno.mkdir(`${work}/out`);
    await compileFamilies(
      Object.keys(files),
      `${work}/src/dylib`,
      `${work}/out`,
      architecture,
      clang,
      options,
    );
    await Deno.rename(`${work}/out`, folder);
  } finally {
    await Deno.remove(work, { recursive: true });
  }
  return folder;
}

/** Compiles every family, a few at a time. */
async function compileFamilies(
  paths: string[],
  source: string,
  out: string,
  architecture: string,
  clang: string,
  options: PtxBuildOptions,
): Promise<void> {
  const texts = new Map<string, string>();
  for (const path of paths.filter((path) => path.startsWith(SHADERS))) {
    texts.set(path.slice(SHADERS.length), await Deno.readTextFile(`${source}/${path}`));
  }
  const tools = { clang, shim: [`${source}/${PTX}shim/`] };
  const families = [...texts.keys()].filter((name) => name.endsWith(".metal")).sort();
  const queue = [...families];
  let done = 0;
  const worker = async () => {
    for (let family = queue.shift(); family; family = queue.shift()) {
      options.signal?.throwIfAborted();
      try {
        const module = await compilePtx(
          flattenShader(family, texts),
          { name: family, arch: architecture },
          tools,
        );
        for (const [name, text] of kernelTexts(module)) await Deno.writeTextFile(`${out}/${name}.ptx`, text);
      } catch (cause) {
        queue.length = 0; // the other workers stop too
        if (!(cause instanceof MslError)) throw cause;
        throw new LibraryError(
          "build_failed",
          `${clang} could not make PTX of ${family}:\n${cause.message}`,
          { cause },
        );
      }
      options.onProgress?.(++done, families.length);
    }
  };
  const workers = Math.min(navigator.hardwareConcurrency, 8);
  const results = await Promise.allSettled(Array.from({ length: workers }, worker));
  for (const result of results) if (result.status === "rejected") throw result.reason;
}

if (import.meta.main) {
  const folder = await buildPtx(Deno.args[0] ?? "sm_90", {
    onProgress: (done, total) => console.error(`compiled ${done} of ${total}`),
  });
  console.log(folder);
}
