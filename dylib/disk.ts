/** Small work on files that other processes may touch at the same time. */

/** Whether there is such a file or folder. */
export async function exists(path: string): Promise<boolean> {
  return await unlessMissing(() => Deno.stat(path)) !== undefined;
}

/** Removes a file, or a folder with all that is in it, unless it is gone already. */
export async function remove(path: string): Promise<void> {
  await unlessMissing(() => Deno.remove(path, { recursive: true }));
}

/** Copies a file that may be removed at any time; false where it is gone already. */
export async function copyIfThere(from: string, to: string): Promise<boolean> {
  return await unlessMissing(() => Deno.copyFile(from, to).then(() => true)) ?? false;
}

/** Milliseconds since a file was written or `touch`ed; 0 where it is gone. */
export async function age(path: string): Promise<number> {
  const info = await unlessMissing(() => Deno.stat(path));
  return info?.mtime ? Date.now() - info.mtime.getTime() : 0;
}

/** Makes a file as young as if it were written now, unless it is gone already. */
export async function touch(path: string): Promise<void> {
  await unlessMissing(() => Deno.utime(path, new Date(), new Date()));
}

async function unlessMissing<T>(work: () => Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return undefined;
    throw error;
  }
}
