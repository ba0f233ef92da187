/** Locks between processes: the same advisory file locks that the Python client takes, so that both keep out of each other's way. */

import type { Wait } from "./http.ts";

/** Milliseconds between two attempts to get a lock. */
const POLL_MS = 200;

/** How to wait for a lock. */
export interface LockOptions {
  wait: Wait;
  signal: AbortSignal | undefined;
  /** called each time that another holder is in the way */ onWait?: () => Promise<void>;
}

/** Does `work` while holding the lock at `path`, whose folder is created. */
export async function withLock<T>(
  path: string,
  { wait, signal, onWait }: LockOptions,
  work: () => Promise<T>,
): Promise<T> {
  await Deno.mkdir(path.slice(0, path.lastIndexOf("/")), { recursive: true });
  using file = await Deno.open(path, { create: true, write: true });
  // Closing the file gives the lock back. A blocking lock could not be aborted.
  while (!await file.tryLock(true)) {
    await onWait?.();
    await wait(POLL_MS, signal);
  }
  return await work();
}

/** Whether some process holds the lock at `path`. */
export async function isHeld(path: string): Promise<boolean> {
  using file = await Deno.open(path, { write: true });
  return !await file.tryLock(true);
}
