/** From a reference to files in the cache: what is there is used, what is missing is downloaded. */
import { readText } from "../checkpoint/files.ts";
import { parseShardIndex } from "../checkpoint/shards.ts";
import { HubError } from "../errors.ts";
import type { Warning } from "../warning.ts";
import { fetchBlob } from "./blob.ts";
import type { HubContext } from "./http.ts";
import { Layout, requireCache, sizeOf, writeError } from "./layout.ts";
import { DEFAULT_REVISION, type HubReference, referenceText } from "./reference.ts";
import { fileMetadata, type HubFile, readRepository, type Repository } from "./repository.ts";
import { type Candidate, type Choice, chooseFiles } from "./select.ts";
import type { HubSettings } from "./settings.ts";

/** How to pull. */
export interface PullOptions {
  settings: HubSettings;
  /** no weights, only what explains a model */ configOnly?: boolean;
  /** bytes that are here, of how many */ onProgress?: (done: number, total: number) => void;
  signal?: AbortSignal;
}

/** What tests turn. */
export interface PullInternals {
  wait?: HubContext["wait"];
  freeBytes?: HubContext["freeBytes"];
  stallMilliseconds?: number;
}

/** What was pulled. */
export interface Pulled {
  /** of the model's file or folder, to be handed to the loader */ path: string;
  /** `org/name` */ repository: string;
  revision: string;
  commit: string;
  /** in the repository, with sizes in bytes */ files: { name: string; size: number }[];
  /** bytes that came over the network */ downloaded: number;
  warnings: Warning[];
}

/** Files that come at the same time. */
const WORKERS = 4;
const STALL_MS = 60_000;
const ATTEMPTS = 6;
/** Where the cache has a copy that will do. */
const ATTEMPTS_BESIDE_COPY = 2;
/** Kept free beside what is downloaded. */
const SPARE_BYTES = 64 * 2 ** 20;

/**
 * Makes sure that a model of the hub is in the cache. Rejects with `HubError` (its `code` tells which), `MissingPermission`
 * or the signal's reason. Where the hub cannot be reached, a complete copy in the cache is used, with a warning.
 */
export async function pull(
  reference: HubReference,
  options: PullOptions,
  internals: PullInternals = {},
): Promise<Pulled> {
  const { settings, signal } = options;
  signal?.throwIfAborted();
  const layout = new Layout(settings.cache, reference.repository);
  await requireCache(settings.cache, false);
  if (settings.offline) return await fromCache(reference, layout, options);
  const cached = await fromCache(reference, layout, options).catch(() => null);
  const context: HubContext = {
    settings,
    attempts: ATTEMPTS,
    signal,
    wait: internals.wait ?? sleep,
    stallMilliseconds: internals.stallMilliseconds ?? STALL_MS,
    freeBytes: internals.freeBytes ?? freeBytes,
  };
  let repository: Repository;
  try {
    const attempts = cached === null ? ATTEMPTS : ATTEMPTS_BESIDE_COPY;
    repository = await readRepository({ ...context, attempts }, reference);
  } catch (error) {
    if (cached === null || !(error instanceof HubError)) throw error;
    if (error.code !== "unreachable" && error.code !== "unavailable") throw error;
    cached.warnings.push({
      code: "hub_unreachable",
      message:
        `${settings.endpoint.host} does not answer; ${cached.repository} is used as the cache has it, ` +
        `at ${cached.commit.slice(0, 12)}.`,
    });
    return cached;
  }
  return await new Pull(context, reference, layout, repository, options).run();
}

/** One repository at one commit, on its way into the cache. */
class Pull {
  readonly #here = new Map<string, number>(); // bytes by file name
  #total = 0;
  #downloaded = 0;

  constructor(
    private readonly context: HubContext,
    private readonly reference: HubReference,
    private readonly layout: Layout,
    private readonly repository: Repository,
    private readonly options: PullOptions,
  ) {}

  async run(): Promise<Pulled> {
    const { layout, reference, repository } = this;
    const { commit } = repository;
    const what = referenceText({ ...reference, file: undefined });
    const choice = chooseFiles(repository.files, reference.file, what, this.options.configOnly);
    if (choice.index !== null) {
      await this.#bring([await this.#metadata(choice.index)]);
      choice.files.push(...await shardsOf(layout.snapshot(commit), choice.index));
    }
    const files = await this.#metadataOf(choice.files);
    await this.#bring(files);
    await this.#guardWrites(() => layout.writeRef(reference.revision ?? DEFAULT_REVISION, commit));
    return {
      path: pathOf(layout, commit, choice),
      repository: reference.repository,
      revision: reference.revision ?? DEFAULT_REVISION,
      commit,
      files: files.map(({ name, size }) => ({ name, size })),
      downloaded: this.#downloaded,
      warnings: [],
    };
  }

  /** Downloads what is missing of these files and gives all of them their names. */
  async #bring(files: HubFile[]): Promise<void> {
    const { context, layout, repository } = this;
    const { commit } = repository;
    const missing: HubFile[] = [];
    for (const file of files) {
      const there = await layout.has(commit, file);
      this.#here.set(file.name, there ? file.size : 0);
      if (!there) missing.push(file);
    }
    this.#total = files.reduce((sum, file) => sum + file.size, 0);
    this.#report();
    if (missing.length > 0) {
      await requireCache(layout.cache, true);
      await this.#checkSpace(missing);
    }
    const found = new Map(files.map((file) => [file.name, file]));
    const queue = [...missing];
    const failures: unknown[] = [];
    const failed = new AbortController(); // one file that fails ends the others
    const signals = [failed.signal, ...(context.signal ? [context.signal] : [])];
    const shared = { ...context, signal: AbortSignal.any(signals) };
    const work = async () => {
      for (let file = queue.shift(); file !== undefined && failures.length === 0; file = queue.shift()) {
        const { name } = file;
        try {
          const final = await fetchBlob(shared, layout, repository, file, (bytes, received) => {
            this.#downloaded += received;
            this.#here.set(name, bytes);
            this.#report();
          });
          this.#total += final.size - file.size;
          found.set(name, final);
        } catch (error) {
          failures.push(writeError(error, repository.name, layout.folder));
          failed.abort();
        }
      }
    };
    await Promise.all(Array.from({ length: Math.min(WORKERS, missing.length) }, work));
    context.signal?.throwIfAborted();
    if (failures.length > 0) throw failures[0];
    for (const file of found.values()) await this.#guardWrites(() => layout.link(commit, file));
  }

  async #checkSpace(missing: readonly HubFile[]): Promise<void> {
    const { context, layout, repository } = this;
    let needed = SPARE_BYTES;
    for (const file of missing) {
      needed += Math.max(0, file.size - (await sizeOf(layout.incomplete(file.etag)) ?? 0));
    }
    await Deno.mkdir(layout.folder, { recursive: true });
    const free = await context.freeBytes(layout.folder);
    if (free === null || free >= needed) return;
    throw new HubError(
      "no_space",
      `${repository.name} needs ${needed} bytes on the disk of ${layout.cache}, which has ${free} free. ` +
        `Free some space, or set HF_HOME to a folder on another disk.`,
    );
  }

  async #metadataOf(names: readonly string[]): Promise<HubFile[]> {
    return await Promise.all(names.map((name) => this.#metadata(name)));
  }

  async #metadata(name: string): Promise<HubFile> {
    const { repository } = this;
    const listed = repository.files.find((file) => file.name === name);
    if (listed === undefined) {
      throw new HubError(
        "file_not_found",
        `${repository.name} has no ${name}, which other files of it refer to.`,
      );
    }
    const { size, etag } = listed;
    if (size !== undefined && etag !== undefined) return { name, size, etag };
    return await fileMetadata(this.context, repository, name);
  }

  async #guardWrites(work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      throw writeError(error, this.repository.name, this.layout.folder);
    }
  }

  #report(): void {
    let done = 0;
    for (const bytes of this.#here.values()) done += bytes;
    this.options.onProgress?.(Math.min(done, this.#total), this.#total);
  }
}

/** What the cache has of a reference. Throws `HubError` with code `not_cached` where that is not all. */
async function fromCache(reference: HubReference, layout: Layout, options: PullOptions): Promise<Pulled> {
  const what = referenceText(reference);
  const missing = (of: string) =>
    new HubError(
      "not_cached",
      `${of} is not in the cache (${layout.folder}). Pull it once with the network on.`,
    );
  const commit = await layout.commitOf(reference.revision ?? DEFAULT_REVISION);
  if (commit === null) throw missing(what);
  const files: Candidate[] = await layout.filesOf(commit).catch(() => []);
  let choice: Choice;
  try {
    choice = chooseFiles(files, reference.file, what, options.configOnly);
  } catch (error) {
    // What the cache lacks, the hub may have.
    const lacking = error instanceof HubError && error.code !== "choose_file";
    throw lacking ? missing(what) : error;
  }
  if (choice.index !== null) choice.files.push(...await shardsOf(layout.snapshot(commit), choice.index));
  const sizes = new Map(files.map(({ name, size }) => [name, size!]));
  for (const name of choice.files) if (!sizes.has(name)) throw missing(`${name} of ${what}`);
  return {
    path: pathOf(layout, commit, choice),
    repository: reference.repository,
    revision: reference.revision ?? DEFAULT_REVISION,
    commit,
    files: choice.files.map((name) => ({ name, size: sizes.get(name)! })),
    downloaded: 0,
    warnings: [],
  };
}

/** The shards that an index of a snapshot names. */
async function shardsOf(snapshot: string, index: string): Promise<string[]> {
  const shards = new Set(parseShardIndex((await readText(snapshot, index, false))!).values());
  const folder = index.slice(0, index.lastIndexOf("/") + 1);
  return [...shards].sort().map((name) => folder + name);
}

function pathOf(layout: Layout, commit: string, { path }: Choice): string {
  return layout.snapshot(commit) + (path === "" ? "" : `/${path}`);
}

/** Bytes that this user may still write to the disk of a folder; null where Deno may not ask. */
async function freeBytes(folder: string): Promise<number | null> {
  if ((await Deno.permissions.query({ name: "sys", kind: "statfs" })).state !== "granted") return null;
  const { statfs } = await import("node:fs/promises"); // megabytes, which most processes need not load
  const { bavail, bsize } = await statfs(folder);
  return bavail * bsize;
}

function sleep(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
