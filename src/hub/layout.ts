/**
 * The folder of one repository in the cache that all clients of the hub share: `blobs` holds contents under their
 * hashes, `snapshots/COMMIT` the files as links to them, `refs` which commit a branch or tag was last seen at.
 */
import { requirePermission } from "../../ffi/permissions.ts";
import { HubError } from "../errors.ts";
import type { HubFile } from "./repository.ts";

/** Paths of one repository's files in the cache. */
export class Layout {
  /** `models--org--name` below the cache */ readonly folder: string;
  /** folder of the locks of its blobs */ readonly locks: string;

  constructor(readonly cache: string, readonly repository: string) {
    const name = `models--${repository.replaceAll("/", "--")}`;
    this.folder = `${cache}/${name}`;
    this.locks = `${cache}/.locks/${name}`;
  }

  get blobs(): string {
    return `${this.folder}/blobs`;
  }

  get snapshots(): string {
    return `${this.folder}/snapshots`;
  }

  get refs(): string {
    return `${this.folder}/refs`;
  }

  blob(etag: string): string {
    return `${this.blobs}/${etag}`;
  }

  /** What has come of a blob so far. */
  incomplete(etag: string): string {
    return `${this.blob(etag)}.incomplete`;
  }

  lock(etag: string): string {
    return `${this.locks}/${etag}.lock`;
  }

  snapshot(commit: string): string {
    return `${this.snapshots}/${commit}`;
  }

  /** The commit that a revision was last seen at; null if it was never here. */
  async commitOf(revision: string): Promise<string | null> {
    if (await isFolder(this.snapshot(revision))) return revision;
    const text = await readOptional(`${this.refs}/${revision}`);
    return text === null || !/^[0-9A-Za-z]{1,64}$/.test(text.trim()) ? null : text.trim();
  }

  /** Remembers what a revision stands for. */
  async writeRef(revision: string, commit: string): Promise<void> {
    if (revision === commit) return;
    const path = `${this.refs}/${revision}`;
    await Deno.mkdir(path.slice(0, path.lastIndexOf("/")), { recursive: true });
    const temporary = `${path}.${crypto.randomUUID()}.part`;
    await Deno.writeTextFile(temporary, commit);
    await Deno.rename(temporary, path);
  }

  /** Whether the content of a file is here, under its hash or in the snapshot; both were verified before they got their names. */
  async has(commit: string, file: HubFile): Promise<boolean> {
    return await sizeOf(this.blob(file.etag)) === file.size ||
      await sizeOf(`${this.snapshot(commit)}/${file.name}`) === file.size;
  }

  /** Gives a blob its name in a snapshot. */
  async link(commit: string, file: HubFile): Promise<void> {
    const path = `${this.snapshot(commit)}/${file.name}`;
    if (await sizeOf(path) === file.size) return;
    await Deno.mkdir(path.slice(0, path.lastIndexOf("/")), { recursive: true });
    const temporary = `${path}.${crypto.randomUUID()}.part`;
    const up = "../".repeat(file.name.split("/").length + 1);
    await linkTo(this.blob(file.etag), `${up}blobs/${file.etag}`, temporary);
    await Deno.rename(temporary, path);
    // Renaming one hard link over another of the same file leaves both.
    await Deno.remove(temporary).catch(() => {});
  }

  /** Names of the files of a snapshot with their sizes. */
  async filesOf(commit: string): Promise<{ name: string; size: number }[]> {
    const files: { name: string; size: number }[] = [];
    const visit = async (prefix: string) => {
      for await (const entry of Deno.readDir(`${this.snapshot(commit)}/${prefix}`)) {
        const name = prefix + entry.name;
        const size = entry.name.endsWith(".part") ? null : await sizeOf(`${this.snapshot(commit)}/${name}`);
        if (size !== null) files.push({ name, size });
        else if (entry.isDirectory) await visit(`${name}/`);
      }
    };
    await visit("");
    return files.sort((a, b) => a.name < b.name ? -1 : 1);
  }
}

/**
 * A symbolic link as the other clients make. Deno grants it only to programs that may read and write everywhere; with
 * narrower permissions, and on systems that refuse it, a hard link does the same, and else a copy.
 */
async function linkTo(blob: string, relative: string, path: string): Promise<void> {
  for (const attempt of [() => Deno.symlink(relative, path), () => Deno.link(blob, path)]) {
    try {
      return await attempt();
    } catch {
      await Deno.remove(path).catch(() => {});
    }
  }
  await Deno.copyFile(blob, path);
}

/** Makes sure that the cache may be used, and `write`n to. Throws `MissingPermission` with the folder's flag. */
export async function requireCache(cache: string, write: boolean): Promise<void> {
  await requirePermission({ name: "read", path: cache }, "to use the hub's cache");
  if (write) {
    await requirePermission({ name: "write", path: cache }, "to keep what is downloaded in the hub's cache");
  }
}

/** Size in bytes of the file at a path, links followed; null where there is none. */
export async function sizeOf(path: string): Promise<number | null> {
  try {
    const info = await Deno.stat(path);
    return info.isFile ? info.size : null;
  } catch (error) {
    if (isAbsent(error)) return null;
    throw error;
  }
}

/** Whether there is a folder at a path. */
export async function isFolder(path: string): Promise<boolean> {
  try {
    return (await Deno.stat(path)).isDirectory;
  } catch (error) {
    if (isAbsent(error)) return false;
    throw error;
  }
}

async function readOptional(path: string): Promise<string | null> {
  try {
    return await Deno.readTextFile(path);
  } catch (error) {
    if (isAbsent(error) || error instanceof Deno.errors.IsADirectory) return null;
    throw error;
  }
}

/** Whether a file operation failed because nothing is there. */
export function isAbsent(error: unknown): boolean {
  return error instanceof Deno.errors.NotFound || error instanceof Deno.errors.NotADirectory ||
    error instanceof Deno.errors.FilesystemLoop;
}

/** A failed write as an error of this library; others come back as they are. */
export function writeError(cause: unknown, what: string, folder: string): unknown {
  const code = (cause as { code?: string } | null)?.code;
  const full = code === "ENOSPC" || code === "EDQUOT" || /no space left|quota exceeded/i.test(String(cause));
  if (!full) return cause;
  return new HubError(
    "no_space",
    `${what}: the disk of ${folder} is full. Free some space and try again; what has come is kept.`,
    { cause },
  );
}
