/**
 * Builds the native library into the cache folder, or finds it there: `<cache>/dylib/<key>/` holds the library and a
 * manifest with its SHA-256. The key is a hash of the sources, flags and target, so a library in the cache needs no
 * compiler. A folder appears there complete or not at all (it is renamed into place), and is checked each time it is opened.
 * `deno run -A dylib/build.ts` builds and prints the path.
 */
import { LibraryError, MarkbaseError } from "../src/errors.ts";
import { cacheFolder } from "../ffi/cache_folder.ts";
import { requirePermission } from "../ffi/permissions.ts";
import { COMMON_FLAGS, type Compiler, compilerCommand, findCompiler, ISAS } from "./compiler.ts";
import { age, remove } from "./disk.ts";
import { EMBEDDED_UNIT, embedShaders } from "./embed_shaders.ts";
import { metalCppHeaders } from "./metal_cpp.ts";
import { compileAll, type Job, METAL_CPP } from "./objects.ts";
import { HERE, readSources, writeSources } from "./source_files.ts";
import { type DeviceSources, PTX, sha256, SHADERS, type Sources, type Unit } from "./sources.ts";

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
  /** further compiler flags of single units, by path below `dylib` (the tests' tile registers in software) */
  unitFlags?: Readonly<Record<string, readonly string[]>>;
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

/** All that decides what the library will be. */
interface Recipe {
  command: string;
  files: Record<string, string>;
  jobs: Job[];
  link: string[];
}

const LIBRARY_NAME = Deno.build.os === "darwin" ? "libmarkbase.dylib" : "libmarkbase.so";
const STALE_MS = 24 * 3600 * 1000; // work folders of killed builds, and objects that no build used since, are removed

/**
 * Returns the library built from the sources, from the cache where it is there and intact, compiling it otherwise.
 * Throws `LibraryError` (no_compiler, old_compiler, build_failed, source_mismatch, source_unavailable, cache_unusable) or
 * `MissingPermission`.
 */
export async function buildLibrary(options: BuildOptions = {}): Promise<BuiltLibrary> {
  const cache = await cacheFolder(options.cache);
  try {
    return await findOrBuild(cache, options);
  } catch (cause) {
    if (options.signal?.aborted || !isSystemError(cause)) throw cause;
    throw new LibraryError(
      "cache_unusable",
      `The library cannot be built in the cache folder ${cache}: ${cause.message}. ` +
        "Name another one with MARKBASE_CACHE or the cache option.",
      { cause },
    );
  }
}

/** Whether the system refused something, such as a folder that cannot be made or a full disk. */
function isSystemError(cause: unknown): cause is Error {
  return cause instanceof Error && !(cause instanceof MarkbaseError) &&
    (Object.values(Deno.errors).some((kind) => cause instanceof kind) || /os error/.test(cause.message));
}

async function findOrBuild(cache: string, options: BuildOptions): Promise<BuiltLibrary> {
  const base = options.sources ?? HERE;
  await requirePermission({ name: "read", path: cache }, "to read its cache folder");
  const sources = withoutPtx(await readSources(base));
  const devices = { ...sources.devices, ...options.devices };
  const recipe = makeRecipe({ ...sources, devices }, await compilerCommand(), options.unitFlags ?? {});
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
    const objects = base.protocol === "file:" ? `${cache}/dylib/objects` : undefined;
    if (objects !== undefined) await Deno.mkdir(objects, { recursive: true });
    const embedded = await writeEmbedded(sources, `${work}/src`);
    const headers = recipe.jobs.some((job) => job.flags.includes(METAL_CPP))
      ? await metalCppHeaders(options.cache)
      : "";
    await Deno.mkdir(`${work}/out`);
    await compileAll({
      ...recipe,
      compiler,
      work,
      files: { ...sources.files, ...embedded },
      headers,
      library: `${work}/out/${LIBRARY_NAME}`,
      objects,
      onProgress: options.onProgress,
      signal: options.signal,
    });
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

/** What makes PTX is no part of the library. */
function withoutPtx(sources: Sources): Sources {
  const files = Object.entries(sources.files).filter(([path]) => !path.startsWith(PTX));
  return { ...sources, files: Object.fromEntries(files) };
}

/** The compiler calls for this machine. */
function makeRecipe(
  sources: Sources,
  command: string,
  unitFlags: Readonly<Record<string, readonly string[]>>,
): Recipe {
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
      const flags = [
        ...COMMON_FLAGS,
        ...defines,
        isas,
        ...device?.flags ?? [],
        ...unitFlags[unit.file] ?? [],
      ];
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
    const bytes = readWhole(path);
    const isIntact = bytes.length === manifest.bytes && await sha256(bytes) === manifest.sha256;
    bytes.buffer.transfer(0); // megabytes that a collector would leave where they are for long
    if (!isIntact) return undefined;
    return { path, sha256: manifest.sha256, compiler: manifest.compiler, built: false };
  } catch (error) {
    if (error instanceof Deno.errors.NotFound || error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** The bytes of a file, read in place: `Deno.readFile` would leave as many in the allocator of a thread that waits for work. */
function readWhole(path: string): Uint8Array<ArrayBuffer> {
  using file = Deno.openSync(path);
  const bytes = new Uint8Array(file.statSync().size);
  let at = 0;
  for (let got: number | null; at < bytes.length && (got = file.readSync(bytes.subarray(at))) !== null;) {
    at += got;
  }
  return bytes.subarray(0, at);
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

/** Writes the manifest and renames the finished folder into place. */
async function install(work: string, folder: string, compiler: Compiler): Promise<void> {
  const bytes = await Deno.readFile(`${work}/out/${LIBRARY_NAME}`);
  const manifest: Manifest = { sha256: await sha256(bytes), bytes: bytes.length, compiler: compiler.version };
  await Deno.writeTextFile(`${work}/out/manifest.json`, JSON.stringify(manifest, null, 2) + "\n");
  await Deno.rename(`${work}/out`, folder);
}

/** Removes what killed builds left behind, and objects that no build used for as long. */
async function removeStale(folder: string): Promise<void> {
  for await (const { name } of Deno.readDir(folder)) {
    const path = `${folder}/${name}`;
    if (name.endsWith(".work") && await age(path) > STALE_MS) await remove(path);
    if (name !== "objects") continue;
    for await (const object of Deno.readDir(path)) {
      if (await age(`${path}/${object.name}`) > STALE_MS) await remove(`${path}/${object.name}`);
    }
  }
}

if (import.meta.main) {
  const library = await buildLibrary({
    onProgress: (done, total) => console.error(`compiled ${done} of ${total}`),
  });
  console.log(library.path);
}
