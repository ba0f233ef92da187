/** Tests of what depends on when threads and timers have the core. */
import { assert } from "@std/assert";

/**
 * Repeats a round until it returns true: for what happens only if this thread has the core in time, which a busy machine does not
 * always give it. What holds at any time is asserted in every round.
 */
export async function until(what: string, round: () => Promise<boolean>): Promise<void> {
  for (let i = 0; i < 40; i++) if (await round()) return;
  assert(false, `not in 40 rounds: ${what}`);
}
