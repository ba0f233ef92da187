/**
 * Continuous batching: whoever wants tokens computed asks here, and each forward takes what is waiting then: decode rows of
 * any sequences in the order in which they were asked for, and chunks of prompts in turn. Sequences join and leave at any
 * forward. Nothing here changes a bit of any result; it only decides when rows run.
 */
import type { TokenKey } from "../cache/prefix.ts";
import type { Sequence } from "../cache/sequence.ts";
import { DeviceError, InvalidArgument } from "../errors.ts";
import { macrotask } from "../event_loop.ts";
import { PAGE_TOKENS } from "../schedule/groups.ts";
import { DraftCosts } from "./draft_length.ts";
import type { Drafter } from "./drafter.ts";
import type { EmbeddedPrefill, Forward, Part, RowRequest } from "./forward.ts";
import type { Pace } from "./pace.ts";
import { splitBlock } from "./placed.ts";
import type { Results } from "./results.ts";
import { draftTokens } from "./speculative.ts";
import type {
  DecodeWork,
  SchedulerLimits,
  Share,
  Waiting,
  WaitingAlone,
  WaitingDecode,
  WaitingPrompt,
} from "./waiting.ts";

/** Turns of the microtask queue after which streams that go on at once have asked for their next row. */
const PROMPT_TURNS = 64;
/** Milliseconds after a decode row in which its stream counts as one that must not be kept waiting. */
const STREAMING_MS = 1000;

/** See the head of this file. */
export class Scheduler {
  readonly #forward: Forward;
  readonly #pace: Pace;
  readonly #limits: SchedulerLimits;
  #decodes: WaitingDecode[] = [];
  #prompts: WaitingPrompt[] = [];
  #alone: WaitingAlone[] = [];
  #running: Promise<void> | undefined;
  #lastDecode = -Infinity;
  #retried = false;
  /** ends the forward under way where nobody wants it */ #stopIfUnwanted: (() => void) | undefined;
  #drafterClosed: Promise<void> | undefined;
  /** Drafts for decode work that asks for it. */
  drafter: Drafter | undefined;
  /** What drafts cost here. */
  readonly costs: DraftCosts = new DraftCosts();

  constructor(forward: Forward, pace: Pace, limits: SchedulerLimits) {
    this.#forward = forward;
    this.#pace = pace;
    this.#limits = limits;
  }

  /** Runs a prompt; see `Forward.prefill`. */
  prompt(
    sequence: Sequence,
    ids: readonly number[],
    options: EmbeddedPrefill,
    take: (results: Results) => void,
  ): Promise<void> {
    if (ids.length === 0) return Promise.resolve();
    return this.#wait(options.signal, (waiting) => {
      this.#prompts.push({ ...waiting, sequence, ids, start: 0, options, take });
    });
  }

  /** Runs decode rows; see `Forward.speculate`. */
  decode(work: DecodeWork): Promise<void> {
    return this.#wait(work.signal, (waiting) => {
      this.#decodes.push({ ...waiting, work, rows: work.rows });
    });
  }

  /**
   * Ends decode work that nobody wants any more: it rejects at once where it waits, and after its forward where that runs, which
   * ends early unless others are part of it.
   */
  leave(work: DecodeWork): void {
    work.left = true;
    const at = this.#decodes.findIndex((waiting) => waiting.work === work);
    if (at >= 0) this.#reject(this.#decodes.splice(at, 1), leftError());
    else this.#stopIfUnwanted?.();
  }

  /** Runs `work` while no forward runs. */
  async alone<T>(signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    let value: T;
    await this.#wait(signal, (waiting) => {
      this.#alone.push({ ...waiting, run: async () => void (value = await work()) });
    });
    return value!;
  }

  /** Releases the drafter; what waits is rejected when its turn comes, since the forward is closed. */
  close(): void {
    this.#drafterClosed = this.drafter?.[Symbol.asyncDispose]();
  }

  /** Resolves when nothing runs. */
  async idle(): Promise<void> {
    await this.#running;
    await this.#drafterClosed;
  }

  #wait(signal: AbortSignal | undefined, enqueue: (waiting: Waiting) => void): Promise<void> {
    return new Promise<void>((resolve, reject) => {
      this.#forward.check();
      signal?.throwIfAborted();
      // What runs is told by its own forward; what waits leaves at once.
      const abort = () => {
        const before = this.#decodes.length + this.#prompts.length + this.#alone.length;
        const others = <T extends Waiting>(list: T[]) => list.filter((other) => other.reject !== reject);
        this.#decodes = others(this.#decodes);
        this.#prompts = others(this.#prompts);
        this.#alone = others(this.#alone);
        if (this.#decodes.length + this.#prompts.length + this.#alone.length < before) reject(signal!.reason);
      };
      signal?.addEventListener("abort", abort, { once: true });
      enqueue({ signal, resolve, reject, release: () => signal?.removeEventListener("abort", abort) });
      this.#running ??= this.#loop();
    });
  }

  async #loop(): Promise<void> {
    let expected = 0;
    for (;;) {
      const started = performance.now();
      await this.#gather(expected);
      expected = 0;
      const alone = this.#alone.shift();
      if (alone !== undefined) {
        alone.release();
        await alone.run().then(alone.resolve, alone.reject);
      } else if (this.#decodes.length + this.#prompts.length > 0) {
        expected = await this.#step(started);
      } else {
        break;
      }
    }
    this.#running = undefined;
  }

  /** Lets streams that got a token ask for the next one, so that they go on together. */
  async #gather(expected: number): Promise<void> {
    for (let turn = 0; turn < PROMPT_TURNS && (turn === 0 || this.#decodes.length < expected); turn++) {
      await null;
    }
    if (this.#decodes.length < expected) await macrotask();
  }

  /**
   * One forward; returns how many streams are likely to ask for another row. `started`: when those of the one before began to ask,
   * by `performance.now()`.
   */
  async #step(started: number): Promise<number> {
    const decodes = this.#takeDecodes();
    const cancel = new AbortController();
    const shares: Share[] = [];
    let drafts: number[][];
    try {
      const drafting = performance.now();
      drafts = await this.#draft(decodes, cancel);
      started += performance.now() - drafting;
    } catch (error) {
      this.#reject(decodes, error);
      return 0;
    }
    for (const [i, waiting] of decodes.entries()) this.#addDecode(shares, waiting, drafts[i]);
    this.#addPrompts(shares);
    if (shares.length === 0) return 0;
    if (decodes.length > 0) this.#lastDecode = performance.now();

    const stopIfUnwanted = this.#stopIfUnwanted = () => {
      if (shares.every(({ waiting }) => waiting.signal?.aborted || hasLeft(waiting))) cancel.abort();
    };
    for (const { waiting } of shares) waiting.signal?.addEventListener("abort", stopIfUnwanted);
    stopIfUnwanted();
    let failure: { error: unknown } | undefined;
    let results: Results[] = [];
    try {
      const run = await this.#forward.run(shares.map(({ part }) => part), cancel.signal);
      results = run.results;
      const rowsOf = (rowClass: Part["rowClass"]) =>
        shares.reduce((sum, { part }) => sum + (part.rowClass === rowClass ? part.tokens.length : 0), 0);
      this.#pace.note(rowsOf("prefill"), rowsOf("decode"), run.seconds);
    } catch (error) {
      failure = { error };
    }
    for (const { waiting } of shares) waiting.signal?.removeEventListener("abort", stopIfUnwanted);
    this.#stopIfUnwanted = undefined;
    if (failure !== undefined) {
      this.#fail(shares, failure.error);
      return 0;
    }
    this.#retried = false;
    let streams = 0;
    shares.forEach((share, i) => {
      if (this.#finish(share, results[i])) streams++;
    });
    if (shares.every(({ part }) => part.rowClass === "decode")) {
      const rows = shares.reduce((sum, { part }) => sum + part.tokens.length, 0);
      this.costs.note(shares.length, rows, (performance.now() - started) / 1000);
    }
    return streams;
  }

  /**
   * Decode work in the order in which it was asked for, as much as one forward takes. A token that was drawn goes before any
   * draft: a sequence that waited for others' drafts would lose more than they gain. What rows are left is shared evenly.
   */
  #takeDecodes(): WaitingDecode[] {
    const taken = this.#decodes.splice(0, this.#limits.decodeRows);
    let left = this.#limits.decodeRows;
    taken.forEach((waiting, i) => {
      waiting.rows = Math.min(waiting.work.rows, Math.floor(left / (taken.length - i)));
      left -= waiting.rows;
    });
    return taken;
  }

  /** Drafts of the decode work: those that are there, or of the drafter, which takes all sequences in one step. */
  async #draft(decodes: readonly WaitingDecode[], cancel: AbortController): Promise<number[][]> {
    const asking = decodes.filter(({ work, rows, signal }) =>
      work.draft !== undefined && rows > 1 && !signal?.aborted
    );
    const drafts = decodes.map(({ work, rows }) => work.drafts?.slice(0, rows - 1) ?? []);
    if (asking.length === 0 || this.drafter === undefined) return drafts;
    const requests = asking.map(({ work, rows }) => ({
      ...work.draft!,
      count: rows - 1,
      length: work.sequence.length,
      tables: work.sequence.tables,
    }));
    const started = performance.now();
    const found = await draftTokens(this.drafter, requests, cancel.signal).catch((error) => {
      this.#forward.check(); // the drafter is closed with the model, which is what the caller knows
      throw error;
    });
    const steps = requests.reduce((most, { count }) => Math.max(most, count), 0);
    this.costs.noteSteps(steps, (performance.now() - started) / 1000);
    asking.forEach((waiting, i) => drafts[decodes.indexOf(waiting)] = found[i]);
    return drafts;
  }

  #addDecode(shares: Share[], waiting: WaitingDecode, drafts: readonly number[]): void {
    const { sequence, mask, build } = waiting.work;
    this.#prepare(shares, waiting, () => {
      const { tokens, requests } = build(drafts);
      sequence.prepare(tokens.length);
      return { sequence, tokens, requests, mask, rowClass: "decode" };
    });
  }

  /** Chunks of prompts, as many rows as the time allows; a prompt that goes on does so after the others. */
  #addPrompts(shares: Share[]): void {
    const isShared = performance.now() - this.#lastDecode < STREAMING_MS || shares.length > 0;
    let rows = this.#pace.rows(isShared);
    let outputs = this.#limits.outRows - shares.reduce((sum, { part }) => sum + part.requests.length, 0);
    while (rows > 0 && outputs > 0 && this.#prompts.length > 0 && shares.length < this.#limits.sequences) {
      const waiting = this.#prompts.shift()!;
      const { sequence, ids, start, options } = waiting;
      const firstOutput = ids.length - options.outputs;
      const wanted = Math.min(ids.length, start + rows, Math.max(start, firstOutput) + outputs);
      const end = this.#wholeBlocks(waiting, wanted, shares);
      if (end === undefined) continue;
      if (end === start) {
        this.#prompts.unshift(waiting); // its block wants a forward with more room
        break;
      }
      this.#prepare(shares, waiting, () => {
        sequence.prepare(end - start);
        const requests = Array.from(
          { length: Math.max(0, end - Math.max(start, firstOutput)) },
          (): RowRequest => ({}),
        );
        if (end === ids.length && requests.length > 0) requests[requests.length - 1] = options.last ?? {};
        outputs -= requests.length;
        const { mask, media } = options;
        return { sequence, tokens: ids.slice(start, end), requests, mask, rowClass: "prefill", media };
      });
      rows -= end - start;
    }
  }

  /**
   * Where a chunk that would end at `end` ends so that it splits no block: before the block, or after one that begins the
   * chunk, if that fits what is left of the forward; else where it begins. Rejects work that no forward has room for, and
   * returns undefined.
   */
  #wholeBlocks(waiting: WaitingPrompt, end: number, shares: readonly Share[]): number | undefined {
    const { sequence, start, ids, options } = waiting;
    const { length } = sequence; // position of ids[start]
    const cut = this.#forward.cut(options.media)(length + end - start) - length + start;
    if (cut > start || cut === end) return cut;
    const { tokens } = splitBlock(options.media!, length + end - start)!;
    const prompts = shares.filter(({ part }) => part.rowClass === "prefill");
    const taken = prompts.reduce((sum, { part }) => sum + part.tokens.length, 0);
    const outputs = Math.max(0, start + tokens - (ids.length - options.outputs));
    const most = this.#limits.outRows - this.#limits.decodeRows;
    if (outputs > most) {
      this.#reject(
        [waiting],
        new InvalidArgument(
          `Logits of ${outputs} positions inside one picture were asked for; ${most} can be had. Lower "last".`,
        ),
      );
      return;
    }
    const fits = taken + tokens <= this.#limits.blockRows &&
      shares.reduce((sum, { part }) => sum + part.requests.length, outputs) <= this.#limits.outRows;
    return fits ? start + tokens : start;
  }

  /** Adds a share, or rejects its work alone. */
  #prepare(shares: Share[], waiting: WaitingDecode | WaitingPrompt, part: () => Part): void {
    try {
      waiting.signal?.throwIfAborted();
      if (hasLeft(waiting)) throw leftError();
      shares.push({ waiting, part: part() });
    } catch (error) {
      this.#reject([waiting], error);
    }
  }

  /** Gives a share its results; returns whether its stream is likely to go on at once. */
  #finish({ waiting, part }: Share, results: Results): boolean {
    const { sequence, tokens } = part;
    const { signal } = waiting;
    try {
      signal?.throwIfAborted();
      if (hasLeft(waiting)) throw leftError();
      if ("work" in waiting) {
        this.#commit(sequence, waiting.work.take(results), waiting.work.keys);
      } else {
        if (results.rows > 0) waiting.take(results);
        this.#commit(sequence, tokens.length, waiting.options.keys);
        waiting.start += tokens.length;
        if (waiting.start < waiting.ids.length) {
          this.#prompts.push(waiting);
          return false;
        }
      }
    } catch (error) {
      sequence.truncate(sequence.length);
      this.#reject([waiting], error);
      return false;
    }
    waiting.release();
    waiting.resolve();
    return true;
  }

  /** Counts the first `count` of the prepared tokens in and gives the room of the others back. */
  #commit(sequence: Sequence, count: number, keys: readonly TokenKey[] | undefined): void {
    const before = sequence.length;
    sequence.commit(count, () => {
      const crossed = Math.floor(sequence.length / PAGE_TOKENS) > Math.floor(before / PAGE_TOKENS);
      if (keys !== undefined && crossed) this.#forward.prefixes.keep(keys, sequence);
    });
    sequence.truncate(sequence.length);
  }

  /** After a forward that failed: a chunk that took too long is tried once more with half the rows, else all learn of it. */
  #fail(shares: readonly Share[], error: unknown): void {
    for (const { part: { sequence } } of shares) sequence.truncate(sequence.length);
    const rows = shares.reduce(
      (sum, { part }) => sum + (part.rowClass === "prefill" ? part.tokens.length : 0),
      0,
    );
    const again = !this.#retried && rows > 1 && error instanceof DeviceError && error.code === "timeout";
    if (again) {
      const limit = this.#pace.halve(rows);
      this.#forward.warnings.push({
        code: "chunk_halved",
        message: `The device gave up on a chunk of ${rows} rows; chunks have ${limit} rows at most now.`,
      });
    }
    this.#retried = again;
    const decodes: WaitingDecode[] = [], prompts: WaitingPrompt[] = [];
    for (const { waiting } of shares) {
      if (!again || waiting.signal?.aborted || hasLeft(waiting)) this.#reject([waiting], error);
      else if ("work" in waiting) decodes.push(waiting);
      else prompts.push(waiting);
    }
    this.#decodes.unshift(...decodes);
    this.#prompts.unshift(...prompts);
  }

  /** Ends work with the reason of its own signal, or with what went wrong. */
  #reject(list: readonly Waiting[], error: unknown): void {
    for (const { signal, release, reject } of list) {
      release();
      reject(signal?.aborted ? signal.reason : error);
    }
  }
}

/** Whether nobody wants the work any more. */
function hasLeft(waiting: Waiting | WaitingDecode): boolean {
  return "work" in waiting && waiting.work.left === true;
}

function leftError(): Error {
  return new DOMException("Its reader left.", "AbortError");
}
