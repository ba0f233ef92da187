/**
 * Builds the software implementation of Metal (`libsoftmetal.so`) and compiles metal-cpp host code against it. Both are cached
 * by a hash of their sources, in the cache folder (`MARKBASE_CACHE`).
 */
import { createHash } from "node:crypto";
import { metalCppHeaders } from "../../dylib/metal_cpp.ts";
import { cacheFolder } from "../../ffi/cache_folder.ts";
import { fromFileUrl } from "./generator/paths.ts";
import { clang, runClang } from "./generator/toolchain.ts";

/** The built library, and how host code is compiled and linked against it. */
export interface SoftMetal {
  /** Path of libsoftmetal.so. */
  library: string;
  /** The C++ compiler. */
  compiler: string;
  /** Flags for `.cpp` files that include metal-cpp. */
  compileFlags: string[];
  /** Flags for the link of a shared library or program. */
  linkFlags: string[];
}

const HERE = fromFileUrl(new URL("./", import.meta.url));

async function filesOf(folder: string): Promise<string[]> {
  const found: string[] = [];
  for await (const e of Deno.readDir(folder)) {
    if (e.isDirectory) found.push(...await filesOf(`${folder}/${e.name}`));
    else found.push(`${folder}/${e.name}`);
  }
  return found.sort();
}

async function hashOf(files: string[], extra: string): Promise<string> {
  const h = createHash("sha256").update(extra);
  for (const f of files) h.update(f).update("\0").update(await Deno.readFile(f));
  return h.digest("hex").slice(0, 32);
}

/** The CPU for which kernels are compiled: what this machine can run, so that a cache may move between like machines. */
async function march(): Promise<string> {
  if (Deno.build.arch === "aarch64") return "armv8.2-a+fp16";
  const flags = await Deno.readTextFile("/proc/cpuinfo").catch(() => "");
  return ["avx2", "fma", "f16c"].every((f) => flags.includes(` ${f} `)) ? "x86-64-v3" : "x86-64-v2";
}

const RUNTIME_FLAGS = ["-std=c++17", "-O2", "-g1", "-fPIC"];
let built: Promise<SoftMetal> | undefined;

/** Builds libsoftmetal where it is not in the cache. Throws Error with the compiler's message, or naming what to install. */
export function softMetal(): Promise<SoftMetal> {
  return built ??= build();
}

async function build(): Promise<SoftMetal> {
  if (Deno.build.os !== "linux") {
    throw new Error("software Metal runs on Linux; on macOS there is Metal itself");
  }
  const compiler = await clang();
  const sources = (await filesOf(HERE + "runtime")).filter((f) => /\.(cpp|S)$/.test(f))
    .filter((f) => !f.endsWith(".S") || f.endsWith(`arch_${Deno.build.arch}.S`));
  const generator = [
    ...await filesOf(HERE + "generator"),
    ...await filesOf(HERE + "shim"),
    ...await filesOf(fromFileUrl(new URL("../../dylib/ptx", import.meta.url))),
  ];
  const toolchain = await hashOf(generator, compiler);
  const all = [...await filesOf(HERE + "runtime"), ...await filesOf(HERE + "stubs")];
  const hash = await hashOf(all, [toolchain, Deno.execPath()].join());
  const folder = `${await cacheFolder()}/softmetal/${hash}`;
  const library = `${folder}/libsoftmetal.so`;
  if (!await isFile(library)) {
    await Deno.mkdir(folder, { recursive: true });
    const kept = `${await cacheFolder()}/softmetal/objects`;
    await Deno.mkdir(kept, { recursive: true });
    const defines = {
      SM_DENO: Deno.execPath(),
      SM_GENERATOR: HERE + "generator/main.ts",
      SM_TOOLCHAIN: toolchain,
      SM_MARCH: await march(),
    };
    const header = Object.entries(defines).map(([k, v]) => `#define ${k} ${JSON.stringify(v)}\n`).join("");
    await Deno.writeTextFile(`${folder}/toolchain.h`, header);
    const shared = [...all.filter((f) => /\.h(pp)?$/.test(f))];
    const objects = await pooled(sources, async (s) => {
      const file = s.slice(s.lastIndexOf("/") + 1);
      const key = await hashOf([s, ...shared], [compiler, file === "library.cpp" ? header : ""].join());
      const object = `${kept}/${file}.${key}.o`;
      if (await isFile(object)) return object;
      await compile([
        ...RUNTIME_FLAGS,
        "-I",
        HERE + "stubs",
        "-I",
        folder,
        "-c",
        s,
        "-o",
        `${object}.${Deno.pid}`,
      ]);
      await Deno.rename(`${object}.${Deno.pid}`, object);
      return object;
    });
    await compile([
      "-shared",
      ...objects,
      "-o",
      `${library}.${Deno.pid}`,
      "-Wl,-soname,libsoftmetal.so",
      "-pthread",
      "-ldl",
    ]);
    await Deno.rename(`${library}.${Deno.pid}`, library);
  }
  const headers = await metalCppHeaders();
  return {
    library,
    compiler,
    compileFlags: [
      "-std=c++17",
      "-fPIC",
      "-fblocks",
      "-fvisibility=hidden",
      "-isystem",
      HERE + "stubs",
      "-isystem",
      headers,
      ...(Deno.build.arch === "aarch64" ? ["-D__arm64__"] : []),
    ],
    linkFlags: [`-L${folder}`, "-lsoftmetal", `-Wl,-rpath,${folder}`, "-Wl,-z,defs", "-pthread"],
  };
}

/** Compiles and links `sources` (C++ that includes metal-cpp) into the shared library of that name in the cache; returns its path. */
export async function buildHost(name: string, sources: string[], flags: string[] = []): Promise<string> {
  const m = await softMetal();
  const hash = await hashOf(sources, JSON.stringify([m, flags]));
  const folder = `${await cacheFolder()}/softmetal/host-${hash}`;
  const out = `${folder}/lib${name}.so`;
  if (await isFile(out)) return out;
  await Deno.mkdir(folder, { recursive: true });
  await compile([
    ...m.compileFlags,
    "-O1",
    ...flags,
    "-shared",
    ...sources,
    ...m.linkFlags,
    "-o",
    `${out}.${Deno.pid}`,
  ]);
  await Deno.rename(`${out}.${Deno.pid}`, out);
  return out;
}

async function compile(args: string[]): Promise<void> {
  const r = await runClang(args);
  if (!r.ok) throw new Error(r.stderr);
}

/** Runs `f` over `items`, as many at a time as there are cores. */
async function pooled<T, R>(items: T[], f: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  let next = 0;
  const worker = async () => {
    for (let i = next++; i < items.length; i = next++) results[i] = await f(items[i]);
  };
  await Promise.all(Array.from({ length: navigator.hardwareConcurrency }, worker));
  return results;
}

async function isFile(path: string): Promise<boolean> {
  return await Deno.stat(path).then((s) => s.isFile, () => false);
}

if (import.meta.main) console.log((await softMetal()).library);
