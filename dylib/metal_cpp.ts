/**
 * The metal-cpp headers (Apache-2.0), which the host code of the Metal device includes. They come with a Python package, fetched
 * once through pip by name and version, and checked against the digest below; nothing of the package itself is run.
 */
import { createHash } from "node:crypto";
import process from "node:process";

const PACKAGE = "pymetal-cpp";
const VERSION = "0.1.5";
const SHA256 = "1118062f635277a2781659fbc4e7e5bac7d565d6948a3461c3b04d6425c15a0e";
const HEADERS = `pymetal_cpp-${VERSION}/thirdparty/metal-cpp`;

/** The folder in which builds are kept: `MARKBASE_CACHE`, else the platform's cache folder and `markbase` in it. */
export function cacheFolder(): string {
  const set = Deno.env.get("MARKBASE_CACHE");
  if (set) return set;
  const home = Deno.env.get("HOME") ?? ".";
  if (process.platform === "darwin") return `${home}/Library/Caches/markbase`;
  return `${Deno.env.get("XDG_CACHE_HOME") ?? home + "/.cache"}/markbase`;
}

/**
 * The folder of the metal-cpp headers, to be given to the compiler as a system include folder: `METAL_CPP_DIR` where it is
 * set, else a copy in the cache, fetched on first use. Throws Error naming the next step when neither is to be had.
 */
export async function metalCppHeaders(): Promise<string> {
  const given = Deno.env.get("METAL_CPP_DIR");
  if (given) {
    if (await exists(`${given}/Metal/Metal.hpp`)) return given;
    throw new Error(`METAL_CPP_DIR=${given} has no Metal/Metal.hpp`);
  }
  const folder = `${cacheFolder()}/metal-cpp/${VERSION}`;
  if (await exists(`${folder}/Metal/Metal.hpp`)) return folder;
  const work = await Deno.makeTempDir({ prefix: "metal-cpp-" });
  try {
    const archive = await download(work);
    const digest = createHash("sha256").update(await Deno.readFile(archive)).digest("hex");
    if (digest !== SHA256) {
      throw new Error(`${PACKAGE} ${VERSION} has SHA-256 ${digest}, not ${SHA256}: set METAL_CPP_DIR to headers you trust`);
    }
    await run(["tar", "-xzf", archive, "-C", work, HEADERS]);
    await Deno.mkdir(`${cacheFolder()}/metal-cpp`, { recursive: true });
    await move(`${work}/${HEADERS}`, folder);
    return folder;
  } finally {
    await Deno.remove(work, { recursive: true });
  }
}

async function download(work: string): Promise<string> {
  try {
    await run(["python3", "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", work, `${PACKAGE}==${VERSION}`]);
  } catch {
    // pip also prepares the package's metadata; where its build tools are missing, isolation lets pip fetch them.
    await run(["python3", "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", work, `${PACKAGE}==${VERSION}`]);
  }
  for await (const f of Deno.readDir(work)) if (f.name.endsWith(".tar.gz")) return `${work}/${f.name}`;
  throw new Error(`pip brought no source archive of ${PACKAGE} ${VERSION}`);
}

async function run(command: string[]): Promise<void> {
  const r = await new Deno.Command(command[0], { args: command.slice(1), stdout: "null", stderr: "piped" }).output();
  if (r.success) return;
  const text = new TextDecoder().decode(r.stderr).trim().split("\n").slice(-4).join("\n");
  throw new Error(`the metal-cpp headers could not be fetched (${command.slice(0, 4).join(" ")}): ${text}\n` +
    "Set METAL_CPP_DIR to a folder that has Metal/Metal.hpp.");
}

/** Renames, or copies where the cache is on another file system; a copy that another process made first is kept. */
async function move(from: string, to: string): Promise<void> {
  const near = `${to}.${process.pid}`;
  await run(["cp", "-r", from, near]);
  try {
    await Deno.rename(near, to);
  } catch (e) {
    await Deno.remove(near, { recursive: true });
    if (!(await exists(`${to}/Metal/Metal.hpp`))) throw e;
  }
}

async function exists(path: string): Promise<boolean> {
  try {
    await Deno.stat(path);
    return true;
  } catch (e) {
    if (e instanceof Deno.errors.NotFound) return false;
    throw e;
  }
}
