/** Programs linked with the CPU device and the C ABI of this library, all of it built with sanitizers. */
import { assert } from "@std/assert";
import { compilerCommand, ISAS } from "../../dylib/compiler.ts";
import { scanSources, sha256 } from "../../dylib/sources.ts";
import { cacheFolder } from "../../ffi/cache_folder.ts";

const dylib = decodeURIComponent(new URL("../../dylib/", import.meta.url).pathname);
const here = decodeURIComponent(new URL("./", import.meta.url).pathname);

/** What `-fsanitize` is given. */
export type Sanitizers = "address,undefined" | "thread";

function flagsOf(sanitizers: Sanitizers): string[] {
  return [`-fsanitize=${sanitizers}`, "-fno-sanitize-recover=all", "-O1", "-g1"];
}

/**
 * Compiles the library and a program of this folder, and returns the executable. The library takes minutes, so both are kept in the
 * cache folder under the hash of their sources.
 */
export async function buildSanitized(program: string, sanitizers: Sanitizers): Promise<string> {
  const { folder, objects } = await buildObjects(sanitizers);
  const texts = [program, "samples.h"].map((file) => Deno.readTextFile(here + file));
  const executable = `${folder}/${program.replace(".cpp", "")}-${await hashOf(await Promise.all(texts))}`;
  if (await exists(executable)) return executable;
  const made = await Deno.makeTempFile({ dir: folder });
  const flags = [...flagsOf(sanitizers), "-std=c++17", "-pthread", `-I${dylib}`];
  await compile([...flags, here + program, ...objects, "-ldl", "-o", made]);
  await Deno.rename(made, executable);
  return executable;
}

async function buildObjects(sanitizers: Sanitizers): Promise<{ folder: string; objects: string[] }> {
  const { files, units } = await scanSources(new URL(`file://${dylib}`));
  const cache = `${await cacheFolder()}/tests`, prefix = `sanitized-${sanitizers.replace(",", "-")}-`;
  const folder = `${cache}/${prefix}${await hashOf([files, flagsOf(sanitizers)])}`;
  const jobs: { file: string; flags: string[] }[] = [];
  for (const { file, isa, device } of units) {
    if (device !== undefined && device !== "cpu") continue;
    for (const name of isa ?? [undefined]) {
      const set = name === undefined ? undefined : ISAS[name];
      if (set?.arch !== undefined && set.arch !== Deno.build.arch) continue;
      jobs.push({ file: dylib + file, flags: name === undefined ? [] : [`-DMB_ISA=${name}`, ...set!.flags] });
    }
  }
  const objectOf = (folder: string, i: number) => `${folder}/${i}.o`;
  const objects = jobs.map((_, i) => objectOf(folder, i));
  if (await exists(folder)) return { folder, objects };
  await Deno.mkdir(cache, { recursive: true });
  const work = await Deno.makeTempDir({ dir: cache });
  const queue = [...jobs.entries()];
  const worker = async () => {
    for (let job = queue.shift(); job; job = queue.shift()) {
      const [i, { file, flags }] = job;
      await compile([
        ...flagsOf(sanitizers),
        "-std=c++17",
        "-ffp-contract=off",
        "-DMB_DEVICE_CPU=1",
        '-DMB_COMPILED_ISAS=""',
        ...flags,
        "-c",
        file,
        "-o",
        objectOf(work, i),
      ]);
    }
  };
  await Promise.all(Array.from({ length: Math.min(4, navigator.hardwareConcurrency) }, worker));
  for await (const entry of Deno.readDir(cache)) { // those of older sources
    if (entry.name.startsWith(prefix)) await Deno.remove(`${cache}/${entry.name}`, { recursive: true });
  }
  await Deno.rename(work, folder);
  return { folder, objects };
}

async function hashOf(values: unknown): Promise<string> {
  return (await sha256(new TextEncoder().encode(JSON.stringify(values)))).slice(0, 32);
}

async function exists(path: string): Promise<boolean> {
  return await Deno.stat(path).then(() => true, () => false);
}

async function compile(args: string[]): Promise<void> {
  const { success, stderr } = await new Deno.Command(await compilerCommand(), { args, stderr: "piped" })
    .output();
  assert(success, `${args}: ${new TextDecoder().decode(stderr).slice(0, 4000)}`);
}

/** Whether the compiler comes with the libraries of these sanitizers. */
export async function hasSanitizers(sanitizers: Sanitizers): Promise<boolean> {
  const child = new Deno.Command(await compilerCommand(), {
    args: [`-fsanitize=${sanitizers}`, "-x", "c++", "-", "-o", "/dev/null"],
    stdin: "piped",
    stderr: "null",
  }).spawn();
  const writer = child.stdin.getWriter();
  await writer.write(new TextEncoder().encode("int main() {}"));
  await writer.close();
  return (await child.status).success;
}
