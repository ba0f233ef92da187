/** Prefixes kept for reuse: snapshots of past timelines whose pages later prompts with the same start can share. */
import type { Sequence } from "./sequence.ts";

interface Snapshot {
  ids: readonly number[];
  sequence: Sequence;
}

/** Snapshots, the least recently used one first to go. */
export class PrefixCache {
  readonly #limit: number;
  /** least recently used first */
  #snapshots: Snapshot[] = [];

  /** `limit`: snapshots at most. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Snapshots held. */
  get size(): number {
    return this.#snapshots.length;
  }

  /**
   * A sequence that holds the longest kept prefix of `ids`, shorter than `ids` itself so that at least one token is
   * left to compute; undefined if none is kept. The caller owns it.
   */
  find(ids: readonly number[]): Sequence | undefined {
    let best: Snapshot | undefined;
    let resume = 0;
    for (const snapshot of this.#snapshots) {
      let shared = 0;
      const most = Math.min(snapshot.ids.length, ids.length - 1);
      while (shared < most && snapshot.ids[shared] === ids[shared]) shared++;
      if (shared > resume && snapshot.sequence.canTruncate(shared)) {
        best = snapshot;
        resume = shared;
      }
    }
    if (best === undefined) return;
    this.#touch(best);
    const sequence = best.sequence.fork();
    sequence.truncate(resume);
    return sequence;
  }

  /** Keeps the present state of `sequence`, which holds `ids`. */
  keep(ids: readonly number[], sequence: Sequence): void {
    if (sequence.length === 0) return;
    const kept = ids.slice(0, sequence.length);
    // A state that holds the same tokens is the same state; a shorter one stays, since it resumes where this cannot.
    const same = this.#snapshots.find((s) =>
      s.ids.length === kept.length && s.ids.every((id, i) => id === kept[i])
    );
    if (same) return this.#touch(same);
    this.#snapshots.push({ ids: kept, sequence: sequence.fork() });
    if (this.#snapshots.length > this.#limit) this.evict();
  }

  /** Lets the least recently used snapshot go; returns whether there was one. */
  evict(): boolean {
    const snapshot = this.#snapshots.shift();
    snapshot?.sequence.dispose();
    return snapshot !== undefined;
  }

  /** Lets all go. */
  clear(): void {
    while (this.evict());
  }

  #touch(snapshot: Snapshot): void {
    this.#snapshots = [...this.#snapshots.filter((other) => other !== snapshot), snapshot];
  }
}
