/**
 * What the native library is built from. `sources.json` names every file with its SHA-256, since a remote directory
 * cannot be listed: a build from a URL fetches exactly these files. `deno run -A dylib/sources.ts` writes it again.
 *
 * Every `.cpp` in `dylib` and in the folder of a device is a compile unit. The GPU kernels in `../shaders` are listed
 * too: the build puts them into a unit of its own (embed_shaders.ts), and so is all of `ptx`, which makes PTX of
 * them. A unit that has a line such as `// isa: scalar avx2 avx512 neon` near its top is compiled once for each of
 * these instruction sets that belongs to the target, with `MB_ISA` defined as its name. All that such a unit defines
 * must live in a namespace named after `MB_ISA`: two instruction sets that emit the same inline function would
 * otherwise share whichever copy the linker keeps.
 */

/** One translation unit. */
export interface Unit {
  /** path below `dylib` */
  file: string;
  /** instruction sets to compile it for; absent: once, with the target's baseline */
  isa?: string[];
  /** key of `devices` that this unit belongs to; absent: part of every library */
  device?: string;
}

/** What a device adds to the build. A unit below `<device>/` belongs to it. */
export interface DeviceSources {
  /** values of `Deno.build.os` where the device is compiled in */
  systems: string[];
  /** further compiler flags of the device's units */
  flags: string[];
  /** further linker flags */
  link: string[];
  /** another device whose units this one needs, wherever it is compiled in */
  needs?: string;
  /** headers that are fetched before its units are compiled */
  headers?: "metal-cpp";
}

/** The contents of `sources.json`. */
export interface Sources {
  /** path relative to `dylib` → SHA-256 in hexadecimal, headers, units and shaders alike, ascending by path */
  files: Record<string, string>;
  /** what is compiled, in the order of `files` */
  units: Unit[];
  /** by name; only those with a folder */
  devices: Record<string, DeviceSources>;
}

/** Where each device is compiled in. Other folders are no part of the library. */
const DEVICES: Record<string, DeviceSources> = {
  cpu: { systems: ["linux", "darwin"], flags: [], link: [] },
  // What the GPU devices share.
  gpu: { systems: [], flags: [], link: [] },
  metal: {
    systems: ["darwin"],
    flags: [],
    // A program without CoreGraphics gets no default Metal device.
    link: ["-framework", "Metal", "-framework", "Foundation", "-framework", "CoreGraphics"],
    needs: "gpu",
    headers: "metal-cpp",
  },
  // The driver is opened at run time. The kernels are no part of the library: ptx/build.ts makes them when the device is opened.
  cuda: { systems: ["linux"], flags: [], link: ["-ldl"], needs: "gpu" },
};

/** The folder of the kernel sources, relative to `dylib`. */
export const SHADERS = "../shaders/";
/** The folder, relative to `dylib`, of what makes PTX of them. */
export const PTX = "ptx/";

const ISA_LINE = /^\/\/ isa:((?: [a-z0-9_]+)+)$/m;
const HEAD_CHARACTERS = 2000; // where the isa line of a unit is looked for

/** SHA-256 of bytes, in hexadecimal. */
export async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)).toHex();
}

/** Lists the sources in a local folder; `folder` is a `file:` URL that ends with a slash. */
export async function scanSources(folder: URL): Promise<Sources> {
  const files: Record<string, string> = {};
  const units: Unit[] = [];
  const devices: Record<string, DeviceSources> = {};
  for (const path of [...await list(folder, ""), ...await listShaders(folder)].sort()) {
    const bytes = await Deno.readFile(new URL(path, folder));
    files[path] = await sha256(bytes);
    const isa = new TextDecoder().decode(bytes.subarray(0, HEAD_CHARACTERS)).match(ISA_LINE)?.[1];
    bytes.buffer.transfer(0); // all of them are megabytes that a collector would leave where they are for long
    if (!path.endsWith(".cpp")) continue;
    const unit: Unit = { file: path };
    if (isa !== undefined) unit.isa = isa.trim().split(" ");
    if (path.includes("/")) {
      const device = path.slice(0, path.indexOf("/"));
      unit.device = device;
      devices[device] = DEVICES[device];
    }
    units.push(unit);
  }
  return { files, units, devices };
}

/** Source files below a folder, as paths relative to it. */
async function list(folder: URL, prefix: string): Promise<string[]> {
  const paths: string[] = [];
  for await (const entry of Deno.readDir(new URL(prefix, folder))) {
    if (entry.isDirectory && prefix === "" && !(entry.name in DEVICES || `${entry.name}/` === PTX)) continue;
    if (entry.isDirectory) paths.push(...await list(folder, `${prefix}${entry.name}/`));
    else if (prefix.startsWith(PTX) || /\.(h|cpp|inc)$/.test(entry.name)) paths.push(prefix + entry.name);
  }
  return paths;
}

/** Kernel sources beside a folder, as paths relative to it; none where there is no such folder. */
async function listShaders(folder: URL): Promise<string[]> {
  const paths: string[] = [];
  try {
    for await (const entry of Deno.readDir(new URL(SHADERS, folder))) {
      if (/\.(h|metal)$/.test(entry.name)) paths.push(SHADERS + entry.name);
    }
  } catch (error) {
    if (!(error instanceof Deno.errors.NotFound)) throw error;
  }
  return paths;
}

/** The text of `sources.json`. */
export function sourcesText(sources: Sources): string {
  return JSON.stringify(sources, null, 2) + "\n";
}

if (import.meta.main) {
  const folder = new URL("./", import.meta.url);
  const sources = await scanSources(folder);
  await Deno.writeTextFile(new URL("sources.json.tmp", folder), sourcesText(sources));
  await Deno.rename(new URL("sources.json.tmp", folder), new URL("sources.json", folder));
  console.log(`sources.json: ${Object.keys(sources.files).length} files, ${sources.units.length} units`);
}
