/** Reading parts of files, with errors that say which file, and which permission flag is missing. */
import { CheckpointError, MissingPermission } from "../errors.ts";
import { decodeUtf8 } from "./json.ts";
import { withoutByteOrderMark } from "../byte_order_mark.ts";

const MAX_TEXT_BYTES = 64 * 1024 * 1024;

/** One file of a checkpoint. */
export interface FileEntry {
  /** As opened. */
  path: string;
  /** In bytes. */
  size: number;
}

/** An open file; `using` closes it. */
export interface OpenFile extends FileEntry, Disposable {
  /** Positioned anywhere. */
  readonly handle: Deno.FsFile;
}

/** Opens `name` in `folder` (or the path `name` itself without a folder) for reading. */
export async function openFile(folder: string | null, name: string): Promise<OpenFile> {
  const path = folder === null ? name : join(folder, name);
  const refuse = ({ isFile }: Deno.FileInfo) => {
    if (!isFile) throw new CheckpointError("missing_file", `${path} is not a file.`);
  };
  refuse(await guard(path, folder ?? path, () => Deno.stat(path))); // opening a pipe would wait for its writer
  const handle = await guard(path, folder ?? path, () => Deno.open(path, { read: true }));
  try {
    const info = await handle.stat();
    refuse(info);
    return { path, size: info.size, handle, [Symbol.dispose]: () => handle.close() };
  } catch (error) {
    handle.close();
    throw error;
  }
}

/** Reads `length` bytes from `offset`. Throws `CheckpointError` if the file ends before. */
export async function readRange(
  file: OpenFile,
  offset: number,
  length: number,
): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = new Uint8Array(length);
  await readInto(file, offset, bytes);
  return bytes;
}

/** Fills `bytes` from `offset` on. Throws like `readRange`. */
export async function readInto({ handle, path }: OpenFile, offset: number, bytes: Uint8Array): Promise<void> {
  await handle.seek(offset, Deno.SeekMode.Start);
  for (let filled = 0; filled < bytes.length;) {
    const count = await handle.read(bytes.subarray(filled));
    if (count === null) throw endedEarly(path, offset + filled, offset + bytes.length);
    filled += count;
  }
}

/** As `readInto`, at once. */
export function readIntoSync({ handle, path }: OpenFile, offset: number, bytes: Uint8Array): void {
  handle.seekSync(offset, Deno.SeekMode.Start);
  for (let filled = 0; filled < bytes.length;) {
    const count = handle.readSync(bytes.subarray(filled));
    if (count === null) throw endedEarly(path, offset + filled, offset + bytes.length);
    filled += count;
  }
}

function endedEarly(path: string, end: number, expected: number): CheckpointError {
  return new CheckpointError(
    "truncated_file",
    `${path} ended at byte ${end}, but ${expected} were expected. Download it again.`,
  );
}

/** Whether there is a folder at `path`; `permission` is the path that Deno must be allowed to read. */
export async function isFolder(path: string, permission: string): Promise<boolean> {
  try {
    return (await guard(path, permission, () => Deno.stat(path))).isDirectory;
  } catch (error) {
    if (error instanceof CheckpointError && error.code === "missing_file") return false;
    throw error;
  }
}

/** Reads a whole text file, without the byte order mark that some editors put first; null if it is `optional` and absent. */
export async function readText(folder: string, name: string, optional: boolean): Promise<string | null> {
  if (optional && await sizeOf(join(folder, name), folder) === null) return null;
  using file = await openFile(folder, name);
  if (file.size > MAX_TEXT_BYTES) {
    throw new CheckpointError(
      "invalid_config",
      `${name} has ${file.size} bytes; the limit is ${MAX_TEXT_BYTES}.`,
    );
  }
  return withoutByteOrderMark(decodeUtf8(await readRange(file, 0, file.size), "invalid_config", name));
}

/** Size in bytes of the file at `path`; null for a folder and for an absent file. */
export async function sizeOf(path: string, permission: string): Promise<number | null> {
  try {
    const info = await guard(path, permission, () => Deno.stat(path));
    return info.isDirectory ? null : info.size;
  } catch (error) {
    if (error instanceof CheckpointError && error.code === "missing_file") return null;
    throw error;
  }
}

/** Names of all files of a folder, sorted; not of hidden ones, as a Mac makes beside each file on other systems' disks. */
export async function listFiles(folder: string): Promise<string[]> {
  return await guard(folder, folder, async () => {
    const names: string[] = [];
    for await (const entry of Deno.readDir(folder)) {
      if (!entry.isDirectory && !entry.name.startsWith(".")) names.push(entry.name);
    }
    return names.sort();
  });
}

/** Runs a file operation and turns its failure into an error of this library. */
async function guard<T>(path: string, permission: string, operation: () => Promise<T>): Promise<T> {
  try {
    return await operation();
  } catch (cause) {
    if (cause instanceof Deno.errors.NotCapable) {
      throw new MissingPermission(`--allow-read=${flagValue(permission)}`, "to open the checkpoint", {
        cause,
      });
    }
    if (cause instanceof Deno.errors.NotFound || cause instanceof Deno.errors.NotADirectory) {
      const next = path.startsWith("~")
        ? "Write the home folder out: shells alone know what ~ is."
        : "Download it, or correct the path.";
      throw new CheckpointError("missing_file", `${path} does not exist. ${next}`, { cause });
    }
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new CheckpointError("unreadable_file", `${path} cannot be read: ${reason}.`, { cause });
  }
}

/** A path as a shell and Deno's permission flags take it: commas doubled, quoted where a shell would split it. */
function flagValue(path: string): string {
  const value = path.replaceAll(",", ",,");
  return /^[\w./,:@%+~-]+$/.test(value) ? value : `"${value}"`;
}

function join(folder: string, name: string): string {
  return /[/\\]$/.test(folder) ? folder + name : `${folder}/${name}`;
}
