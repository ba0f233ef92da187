/** What the self-checks of one device found so far: a file in the cache folder, one for each device, system and library. */
import { cacheFolder } from "../../ffi/cache_folder.ts";
import type { Device } from "../../ffi/device.ts";
import { sha256 } from "../../dylib/sources.ts";

/** One case in one precision. */
export interface CheckEntry {
  precision: "exact" | "fast";
  /** what the case is about (src/schedule/variants.ts) */ variants: readonly string[];
  /** what is wrong, in a sentence; absent: nothing */ failure?: string;
}

interface Findings {
  /** variants that a case agreed on, or that no case is about */ passed: string[];
  unchecked: string[];
  failed: { variants: string[]; failure: string }[];
}

interface Contents {
  /** of the device and all that its results depend on */ subject: Record<string, string>;
  exact: Findings;
  fast: Findings;
}

/** The findings about one device. Without permission for the cache folder they last as long as the object. */
export class CheckRecord {
  /** of the file; undefined: nothing is kept */
  readonly path: string | undefined;
  readonly #contents: Contents;

  private constructor(path: string | undefined, contents: Contents) {
    this.path = path;
    this.#contents = contents;
  }

  /** Reads the record of a device. A file that is missing, damaged or of another device counts as empty. */
  static async open(device: Device, cache?: string): Promise<CheckRecord> {
    const subject = await subjectOf(device, cache);
    const empty: Contents = { subject, exact: noFindings(), fast: noFindings() };
    const path = await pathOf(subject, cache);
    if (path === undefined) return new CheckRecord(undefined, empty);
    return new CheckRecord(path, await read(path, subject) ?? empty);
  }

  /** What is known of these variants: a failure that concerns them, and those that nothing is known of. */
  known(
    variants: ReadonlySet<string>,
    precision: "exact" | "fast",
  ): { failure?: string; open: string[]; unchecked: string[] } {
    const { passed, unchecked, failed } = this.#contents[precision];
    const failure = failed.find((entry) => entry.variants.every((variant) => variants.has(variant)))?.failure;
    const settled = new Set([...passed, ...unchecked]);
    return {
      failure,
      open: [...variants].filter((variant) => !settled.has(variant)),
      unchecked: unchecked.filter((variant) => variants.has(variant)),
    };
  }

  /** Adds what a case showed, in place of what an earlier run of it did. */
  add({ precision, variants, failure }: CheckEntry): void {
    const findings = this.#contents[precision];
    const key = JSON.stringify(variants);
    findings.failed = findings.failed.filter((entry) => JSON.stringify(entry.variants) !== key);
    findings.unchecked = findings.unchecked.filter((variant) => !variants.includes(variant));
    if (failure === undefined) {
      findings.passed = [...new Set([...findings.passed, ...variants])];
    } else {
      findings.passed = findings.passed.filter((variant) => !variants.includes(variant));
      findings.failed.push({ variants: [...variants], failure });
    }
  }

  /** Notes variants that no case is about. */
  leaveUnchecked(variants: readonly string[], precision: "exact" | "fast"): void {
    const findings = this.#contents[precision];
    findings.unchecked = [...new Set([...findings.unchecked, ...variants])];
  }

  /** Writes the file, whole or not at all. Where that is not possible the next process checks again. */
  async save(): Promise<void> {
    if (this.path === undefined) return;
    const temporary = `${this.path}.${crypto.randomUUID()}.tmp`;
    try {
      await Deno.mkdir(this.path.replace(/\/[^/]*$/, ""), { recursive: true });
      await Deno.writeTextFile(temporary, JSON.stringify(this.#contents));
      await Deno.rename(temporary, this.path);
    } catch {
      await Deno.remove(temporary).catch(() => {});
    }
  }
}

function noFindings(): Findings {
  return { passed: [], unchecked: [], failed: [] };
}

/** Everything that a device's results depend on. */
async function subjectOf(device: Device, cache?: string): Promise<Record<string, string>> {
  const { kind, name, level, system } = device.info();
  const subject: Record<string, string> = { kind, name, level, system: system ?? "" };
  subject.library = device.library.sha256;
  subject.matrixUnits = String(device.matrixUnits); // other kernels
  // The kernels of the cuda device are no part of the library; their folder is named after their sources.
  if (kind === "cuda") {
    const { ptxFolder } = await import("../../dylib/ptx/build.ts");
    subject.kernels = (await ptxFolder({ cache })).replace(/^.*\//, "");
  }
  return subject;
}

async function pathOf(subject: Record<string, string>, cache?: string): Promise<string | undefined> {
  try {
    const folder = `${await cacheFolder(cache)}/self-check`;
    for (const name of ["read", "write"] as const) {
      if ((await Deno.permissions.query({ name, path: folder })).state !== "granted") return undefined;
    }
    const key = await sha256(new TextEncoder().encode(JSON.stringify(subject)));
    return `${folder}/${key.slice(0, 32)}.json`;
  } catch {
    return undefined;
  }
}

async function read(path: string, subject: Record<string, string>): Promise<Contents | undefined> {
  try {
    const contents: Contents = JSON.parse(await Deno.readTextFile(path));
    const sound = JSON.stringify(contents.subject) === JSON.stringify(subject) &&
      isFindings(contents.exact) && isFindings(contents.fast);
    return sound ? contents : undefined;
  } catch {
    return undefined;
  }
}

function isFindings(value: unknown): value is Findings {
  const { passed, unchecked, failed } = value as Findings;
  const texts = (list: unknown) => Array.isArray(list) && list.every((item) => typeof item === "string");
  return texts(passed) && texts(unchecked) && Array.isArray(failed) &&
    failed.every((entry) => texts(entry.variants) && typeof entry.failure === "string");
}
