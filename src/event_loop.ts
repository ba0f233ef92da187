/** Turns of the event loop. */

/** The next turn of the event loop: everything that waits for this thread has its own before it. */
export function macrotask(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve)); // the global, which Deno makes when it is first used
}
