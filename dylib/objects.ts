/**
 * Compiles the units of the native library and links them. Objects of a local checkout are kept under a name that is the hash
 * of all that goes into them, so that a change to one file compiles only the units that include it.
 */
import { LibraryError } from "../src/errors.ts";
import type { Compiler } from "./compiler.ts";
import { copyIfThere, touch } from "./disk.ts";
import { sha256 } from "./sources.ts";

/** One compiler call: a unit for one instruction set. */
export interface Job {
  file: string;
  flags: string[];
  /** file name of the object */
  object: string;
}

/** What to compile, and how. */
export interface Compilation {
  compiler: Compiler;
  jobs: readonly Job[];
  /** flags of the linker */
  link: readonly string[];
  /** folder for what is made on the way; the sources are below its `src` */
  work: string;
  /** hashes of the sources by path */
  files: Readonly<Record<string, string>>;
  /** stands for `METAL_CPP` in flags */
  headers: string;
  /** path of the library to be */
  library: string;
  /** folder of kept objects; absent: none are kept */
  objects?: string;
  /** units compiled so far, of how many */
  onProgress?: (done: number, total: number) => void;
  /** ends the compilers; the call then rejects with its reason */
  signal?: AbortSignal;
}

/** Stands in flags for the folder of the metal-cpp headers, which are pinned by hash wherever they are. */
export const METAL_CPP: string = "<metal-cpp>";
const MAX_JOBS = 8; // compilers at once: each takes up to about 500 MB

/** Compiles every job, a few at a time, and links them. Throws `LibraryError` ("build_failed"). */
export async function compileAll(compilation: Compilation): Promise<void> {
  const { compiler, jobs, work, library, signal } = compilation;
  const queue = [...jobs];
  const objects: string[] = [];
  const worker = async () => {
    for (let job = queue.shift(); job; job = queue.shift()) {
      signal?.throwIfAborted();
      try {
        objects.push(await objectOf(job, compilation));
      } catch (error) {
        queue.length = 0; // the other workers stop too
        throw error;
      }
      compilation.onProgress?.(objects.length, jobs.length);
    }
  };
  const workers = Math.max(1, Math.min(navigator.hardwareConcurrency, MAX_JOBS));
  const results = await Promise.allSettled(Array.from({ length: workers }, worker));
  for (const result of results) if (result.status === "rejected") throw result.reason;
  const args = [...objects.sort(), ...compilation.link, "-o", library];
  await runCompiler(compiler, args, work, library.slice(library.lastIndexOf("/") + 1), signal);
}

/** The object of a job in the work folder, compiled or copied from the kept ones. */
async function objectOf(job: Job, compilation: Compilation): Promise<string> {
  const { compiler, work, files, headers, objects, signal } = compilation;
  const inputs = await inputHashes(job.file, files, `${work}/src`);
  const identity = JSON.stringify([compiler, job.flags, inputs, Deno.build.target]);
  const key = (await sha256(new TextEncoder().encode(identity))).slice(0, 32);
  const object = `${work}/${job.object}`;
  const kept = objects && `${objects}/${key}-${job.object}`;
  // A copy, since other builds remove kept objects that none used for long.
  if (kept !== undefined && await copyIfThere(kept, object)) {
    await touch(kept);
    return object;
  }
  const flags = job.flags.map((flag) => flag === METAL_CPP ? headers : flag);
  const args = [...flags, "-I.", "-c", job.file, "-o", object];
  await runCompiler(compiler, args, `${work}/src`, job.object.replace(/\.o$/, ""), signal);
  if (kept !== undefined) await keep(object, kept);
  return object;
}

/** Keeps a copy, which appears complete or not at all. */
async function keep(object: string, kept: string): Promise<void> {
  await Deno.copyFile(object, `${object}.copy`);
  await Deno.rename(`${object}.copy`, kept);
}

/** Hashes of a unit and of every source that it includes, directly or not; keyed by path. */
async function inputHashes(
  file: string,
  files: Readonly<Record<string, string>>,
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
