/** Turns of the event loop. */
import { setImmediate } from "node:timers";

/** The next turn of the event loop: everything that waits for this thread has its own before it. */
export function macrotask(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
