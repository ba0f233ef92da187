/**
 * Builds the native library into the cache folder, or finds it there: `<cache>/dylib/<key>/` holds the library and a
 * manifest with its SHA-256. The key is a hash of the sources, flags and target, so a library in the cache needs no
 * compiler. A folder appears there complete or not at all (it is renamed into place), and is checked each time it is opened.
 * `deno run -A dylib/build.ts` builds and prints the path.
 */
import { LibraryError } from "../src/errors.ts";
import { cacheFolder } from "../ffi/cache_folder.ts";
import { requirePermission } from "../ffi/permissions.ts";
import { COMMON_FLAGS, type Compiler, compilerCommand, findCompiler, ISAS } from "./compiler.ts";
import { EMBEDDED_UNIT, embedShaders } from "./embed_shaders.ts";
import { metalCppHeaders } from "./metal_cpp.ts";
import { type DeviceSources, PTX, scanSources, sha256, SHADERS, type Sources, type Unit } from "./sources.ts";
import shippedSources from "./sources.json" with { type: "json" };

/** Options of `buildLibrary`. */
export interface BuildOptions {
  /** cache folder; default: `MARKBASE_CACHE`, else the platform's */
  cache?: string;
  /** units compiled so far, of how many */
  onProgress?: (done: number, total: number) => void;
  /** ends the compilers; the call then rejects with its reason */
  signal?: AbortSignal;
  /** folder of the sources (with a `sources.json` where it is remote), ends with a slash; default: this module's */
  sources?: URL;
  /** devices to build in another way than this system's (the tests' software Metal) */
  devices?: Record<string, DeviceSources>;
}

/** A library in the cache folder. */
export interface BuiltLibrary {
  /** absolute path of the file */
  path: string;
  /** of the file, hexadecimal */
  sha256: string;
  /** such as "g++ 12.2.0" */
  compiler: string;
  /** false: it was in the cache */
  built: boolean;
}

/** `manifest.json` beside the library. */
interface Manifest {
  sha256: string;
  bytes: number;
  compiler: string;
}

/** One compiler call: a unit for one instruction set. */
interface Job {
  file: string;
  flags: string[];
  /** file name of the object */
  object: string;
}

/** All that decides what the library will be. */
interface Recipe {
  command: string;
  files: Record<string, string>;
  jobs: Job[];
  link: string[];
}

/** Stands in flags for the folder of the metal-cpp headers, which are pinned by hash wherever they are. */
const METAL_CPP = "<metal-cpp>";

const HERE = new URL("./", import.meta.url);
const LIBRARY_NAME = Deno.build.os === "darwin" ? "libmarkbase.dylib" : "libmarkbase.so";
const MAX_JOBS = 8; // compilers at once: each takes up to about 500 MB
const STALE_MS = 24 * 3600 * 1000; // work folders of killed builds are removed after this

/**
 * Returns the library built from the sources, from the cache where it is there and intact, compiling it otherwise.
 * Throws `LibraryError` (no_compiler, old_compiler, build_failed, source_mismatch, source_unavailable) or
 * `MissingPermission`.
 */
export async function buildLibrary(options: BuildOptions = {}): Promise<BuiltLibrary> {
  const base = options.sources ?? HERE;
  const cache = await cacheFolder(options.cache);
  await requirePermission({ name: "read", path: cache }, "to read its cache folder");
  const sources = withoutPtx(await readSources(base));
  const local = base.protocol === "file:";
  const devices = { ...sources.devices, ...options.devices };
  const recipe = makeRecipe({ ...sources, devices }, await compilerCommand());
  const key = (await sha256(new TextEncoder().encode(JSON.stringify([recipe, Deno.build.target])))).slice(
    0,
    32,
  );
  const folder = `${cache}/dylib/${key}`;
  const found = await openInstalled(folder);
  if (found) return found;

  await requirePermission({ name: "write", path: cache }, "to build its native library in its cache folder");
  const compiler = await findCompiler(recipe.command);
  await Deno.mkdir(`${cache}/dylib`, { recursive: true });
  using lock = await Deno.open(`${folder}.lock`, { create: true, write: true });
  await lock.lock(true); // released by the system if this process dies
  const meanwhile = await openInstalled(folder);
  if (meanwhile) return meanwhile;
  await removeStale(`${cache}/dylib`);
  const work = await Deno.makeTempDir({ dir: `${cache}/dylib`, prefix: `${key}.`, suffix: ".work" });
  try {
    await writeSources(sources.files, base, `${work}/src`);
    const objects = local
      ? await ensureFolder(`${cache}/dylib/objects`)
      : await ensureFolder(`${work}/objects`);
    const embedded = await writeEmbedded(sources, `${work}/src`);
    const headers = recipe.jobs.some((job) => job.flags.includes(METAL_CPP))
      ? await metalCppHeaders(options.cache)
      : "";
    await compileAll(recipe, { ...sources.files, ...embedded }, headers, compiler, work, objects, options);
    await remove(folder); // a damaged one
    await install(work, folder, compiler);
  } finally {
    await remove(work);
  }
  const built = await openInstalled(folder);
  if (!built) {
    throw new LibraryError("build_failed", `The library in ${folder} changed while it was installed.`);
  }
  return { ...built, built: true };
}

/**
 * Lists the sources below `base`, a folder on this machine or elsewhere that holds this module or a `sources.json`. Throws
 * `LibraryError` ("source_unavailable") or `MissingPermission`.
 */
export async function readSources(base: URL): Promise<Sources> {
  if (base.protocol === "file:") {
    await requirePermission(
      { name: "read", path: pathOf(base) },
      "to read the sources of its native library",
    );
    await requirePermission(
      { name: "read", path: pathOf(new URL(SHADERS, base)) },
      "to read the sources of its GPU kernels",
    );
    return await scanSources(base);
  }
  if (base.href === HERE.href) return shippedSources as Sources;
  return JSON.parse(new TextDecoder().decode(await download(new URL("sources.json", base))));
}

/** What makes PTX is no part of the library. */
function withoutPtx(sources: Sources): Sources {
  const files = Object.entries(sources.files).filter(([path]) => !path.startsWith(PTX));
  return { ...sources, files: Object.fromEntries(files) };
}

/** The compiler calls for this machine. */
function makeRecipe(sources: Sources, command: string): Recipe {
  const { os, arch } = Deno.build;
  const chosen = Object.entries(sources.devices).filter(([, device]) => device.systems.includes(os));
  const needed = chosen.map(([, device]) => device.needs);
  const devices = Object.entries(sources.devices).filter(([name, device]) =>
    device.systems.includes(os) || needed.includes(name)
  );
  const compiled = sources.units.flatMap((unit) => unit.isa ?? []).filter((isa) =>
    (ISAS[isa]?.arch ?? arch) === arch
  );
  const isas = `-DMB_COMPILED_ISAS="${[...new Set(compiled)]}"`;
  const jobs: Job[] = [];
  const embedded: Unit = { file: EMBEDDED_UNIT, device: "metal" };
  for (const unit of [...sources.units, embedded]) {
    const device = devices.find(([name]) => name === unit.device)?.[1];
    if (unit.device !== undefined && device === undefined) continue;
    // A device's own units need not be compiled again when another device is added.
    const known = unit.device === undefined ? devices.map(([name]) => name) : [unit.device];
    const defines = known.map((name) => `-DMB_DEVICE_${name.toUpperCase()}=1`);
    for (const isa of unit.isa ?? [undefined]) {
      const flags = [...COMMON_FLAGS, ...defines, isas, ...(device?.flags ?? [])];
      if (device?.headers === "metal-cpp") flags.push("-isystem", METAL_CPP);
      if (isa !== undefined) {
        const set = ISAS[isa];
        if (!set) {
          throw new LibraryError("build_failed", `${unit.file} names the unknown instruction set "${isa}".`);
        }
        if (set.arch !== undefined && set.arch !== arch) continue;
        flags.push(`-DMB_ISA=${isa}`, ...set.flags);
      }
      const object = `${unit.file.replaceAll("/", "-").replace(/\.cpp$/, "")}${isa ? `-${isa}` : ""}.o`;
      jobs.push({ file: unit.file, flags, object });
    }
  }
  const link = os === "darwin"
    ? ["-dynamiclib", "-pthread", `-Wl,-install_name,@rpath/${LIBRARY_NAME}`]
    : ["-shared", "-pthread", "-Wl,--no-undefined", "-Wl,-z,noexecstack"];
  for (const [, device] of devices) link.push(...device.link);
  return { command, files: sources.files, jobs, link };
}

/** The installed library, or undefined where there is none or its bytes are not what the manifest says. */
async function openInstalled(folder: string): Promise<BuiltLibrary | undefined> {
  const path = `${folder}/${LIBRARY_NAME}`;
  try {
    const manifest: Manifest = JSON.parse(await Deno.readTextFile(`${folder}/manifest.json`));
    const bytes = await Deno.readFile(path);
    if (bytes.length !== manifest.bytes || await sha256(bytes) !== manifest.sha256) return undefined;
    return { path, sha256: manifest.sha256, compiler: manifest.compiler, built: false };
  } catch (error) {
    if (error instanceof Deno.errors.NotFound || error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** Puts sources (path → SHA-256) below a folder, so that what is compiled is what was hashed. Throws `LibraryError`. */
export async function writeSources(files: Record<string, string>, base: URL, folder: string): Promise<void> {
  await Promise.all(
    Object.entries(files).map(async ([path, hash]) => {
      const url = new URL(path, base);
      const bytes = url.protocol === "file:" ? await Deno.readFile(url) : await download(url);
      if (await sha256(bytes) !== hash) {
        throw new LibraryError(
          "source_mismatch",
          `${url.href} is not the file that this version of markbase was made with (SHA-256 ${hash}). ` +
            "Try again; if that does not help, the host serves files of different versions.",
        );
      }
      const target = `${folder}/${path}`;
      await Deno.mkdir(target.slice(0, target.lastIndexOf("/")), { recursive: true });
      await Deno.writeFile(target, bytes);
    }),
  );
}

/** Writes the unit that holds the GPU kernels and returns its hash, keyed by its path. */
async function writeEmbedded(sources: Sources, folder: string): Promise<Record<string, string>> {
  const files = new Map<string, string>();
  for (const path of Object.keys(sources.files).filter((path) => path.startsWith(SHADERS))) {
    files.set(path.slice(SHADERS.length), await Deno.readTextFile(`${folder}/${path}`));
  }
  const bytes = new TextEncoder().encode(embedShaders(files));
  await Deno.mkdir(`${folder}/gpu`, { recursive: true });
  await Deno.writeFile(`${folder}/${EMBEDDED_UNIT}`, bytes);
  return { [EMBEDDED_UNIT]: await sha256(bytes) };
}

async function download(url: URL): Promise<Uint8Array<ArrayBuffer>> {
  await requirePermission({ name: "net", host: url.host }, "to fetch the sources of its native library");
  let response: Response;
  try {
    response = await fetch(url);
  } catch (cause) {
    throw new LibraryError("source_unavailable", `${url.href} cannot be fetched. Check the network.`, {
      cause,
    });
  }
  if (!response.ok) {
    await response.body?.cancel();
    throw new LibraryError(
      "source_unavailable",
      `${url.href} cannot be fetched: HTTP status ${response.status}.`,
    );
  }
  return await response.bytes();
}

/**
 * Compiles every job, a few at a time, and links. Objects of a local checkout are kept under a name that is the hash
 * of all that goes into them, so that a change to one file compiles only the units that include it.
 */
async function compileAll(
  recipe: Recipe,
  files: Record<string, string>,
  headers: string,
  compiler: Compiler,
  work: string,
  objects: string,
  options: BuildOptions,
): Promise<void> {
  const queue = [...recipe.jobs];
  const linked: string[] = [];
  let done = 0;
  const worker = async () => {
    for (let job = queue.shift(); job; job = queue.shift()) {
      options.signal?.throwIfAborted();
      const inputs = await inputHashes(job.file, files, `${work}/src`);
      const identity = JSON.stringify([compiler, job.flags, inputs, Deno.build.target]);
      const object = `${objects}/${
        (await sha256(new TextEncoder().encode(identity))).slice(0, 32)
      }-${job.object}`;
      if (!await exists(object)) {
        const fresh = `${work}/${job.object}`;
        const flags = job.flags.map((flag) => flag === METAL_CPP ? headers : flag);
        const args = [...flags, "-I.", "-c", job.file, "-o", fresh];
        try {
          await runCompiler(compiler, args, `${work}/src`, job.object.replace(/\.o$/, ""), options.signal);
        } catch (error) {
          queue.length = 0; // the other workers stop too
          throw error;
        }
        await Deno.rename(fresh, object);
      }
      linked.push(object);
      options.onProgress?.(++done, recipe.jobs.length);
    }
  };
  const workers = Math.max(1, Math.min(navigator.hardwareConcurrency, MAX_JOBS));
  const results = await Promise.allSettled(Array.from({ length: workers }, worker));
  for (const result of results) if (result.status === "rejected") throw result.reason;
  await Deno.mkdir(`${work}/out`);
  const args = [...linked.sort(), ...recipe.link, "-o", `${work}/out/${LIBRARY_NAME}`];
  await runCompiler(compiler, args, work, LIBRARY_NAME, options.signal);
}

/** Hashes of a unit and of every source that it includes, directly or not; keyed by path. */
async function inputHashes(
  file: string,
  files: Record<string, string>,
  folder: string,
): Promise<Record<string, string>> {
  const hashes: Record<string, string> = {};
  const visit = async (path: string): Promise<void> => {
    if (path in hashes || !(path in files)) return;
    hashes[path] = files[path];
    const text = await Deno.readTextFile(`${folder}/${path}`);
    for (const [, name] of text.matchAll(/^\s*#\s*include\s*"([^"]+)"/gm)) {
      await visit(relativePath(path, name));
      await visit(name); // found through -I.
    }
  };
  await visit(file);
  return hashes;
}

/** The path, as `sources.json` spells it, of what the file `from` names as `name`. */
function relativePath(from: string, name: string): string {
  const path = new URL(name, `file:///dylib/${from}`).pathname;
  return path.startsWith("/dylib/") ? path.slice("/dylib/".length) : `..${path}`;
}

async function runCompiler(
  compiler: Compiler,
  args: string[],
  cwd: string,
  what: string,
  signal?: AbortSignal,
): Promise<void> {
  const command = new Deno.Command(compiler.command, { args, cwd, stdin: "null", stderr: "piped", signal });
  const result = await command.output();
  signal?.throwIfAborted();
  if (result.success) return;
  const lines = new TextDecoder().decode(result.stderr).split("\n");
  const text = lines.slice(0, 40).join("\n");
  throw new LibraryError(
    "build_failed",
    `${compiler.version} could not build ${what} (status ${result.code}):\n${text}`,
  );
}

/** Writes the manifest and renames the finished folder into place. */
async function install(work: string, folder: string, compiler: Compiler): Promise<void> {
  const bytes = await Deno.readFile(`${work}/out/${LIBRARY_NAME}`);
  const manifest: Manifest = { sha256: await sha256(bytes), bytes: bytes.length, compiler: compiler.version };
  await Deno.writeTextFile(`${work}/out/manifest.json`, JSON.stringify(manifest, null, 2) + "\n");
  await Deno.rename(`${work}/out`, folder);
}

/** Removes what killed builds left behind, and objects older than that. */
async function removeStale(folder: string): Promise<void> {
  const before = Date.now() - STALE_MS;
  for await (const entry of Deno.readDir(folder)) {
    if (!entry.name.endsWith(".work") && entry.name !== "objects") continue;
    const path = `${folder}/${entry.name}`;
    if (entry.name !== "objects") {
      if (await modified(path) < before) await remove(path);
      continue;
    }
    for await (const object of Deno.readDir(path)) {
      if (await modified(`${path}/${object.name}`) < before) await remove(`${path}/${object.name}`);
    }
  }
}

async function modified(path: string): Promise<number> {
  try {
    return (await Deno.stat(path)).mtime?.getTime() ?? Date.now();
  } catch {
    return Date.now(); // another process removed it
  }
}

async function ensureFolder(path: string): Promise<string> {
  await Deno.mkdir(path, { recursive: true });
  return path;
}

async function exists(path: string): Promise<boolean> {
  try {
    await Deno.stat(path);
    return true;
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return false;
    throw error;
  }
}

async function remove(path: string): Promise<void> {
  try {
    await Deno.remove(path, { recursive: true });
  } catch (error) {
    if (!(error instanceof Deno.errors.NotFound)) throw error;
  }
}

/** The path of a `file:` URL, without a trailing slash. */
function pathOf(url: URL): string {
  return decodeURIComponent(url.pathname).replace(/\/$/, "");
}

if (import.meta.main) {
  const library = await buildLibrary({
    onProgress: (done, total) => console.error(`compiled ${done} of ${total}`),
  });
  console.log(library.path);
}
