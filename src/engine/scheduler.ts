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
import type { Forward } from "./forward.ts";
import type { EmbeddedPrefill, Part, RowRequest } from "./part.ts";
import type { Pace } from "./pace.ts";
import { splitBlock } from "./placed.ts";
import type { Results } from "./results.ts";
import { draftTokens } from "./speculative.ts";
import {
  type DecodeWork,
  release,
  type SchedulerLimits,
  type Share,
  type Waiting,
  type WaitingAlone,
  type WaitingDecode,
  type WaitingPrompt,
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
  /** of the forward under way */ #shares: Share[] = [];
  /** when the last forward ended, or the first of a row of them was asked for, by `performance.now()` */ #since =
    0;
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
    if (at >= 0) {
      this.#forward.drop();
      this.#reject(this.#decodes.splice(at, 1), leftError());
    } else this.#stopIfUnwanted();
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
      const abort = signal && (() => this.#abort(reject, signal));
      if (abort) signal.addEventListener("abort", abort, { once: true });
      enqueue({ signal, resolve, reject, abort });
      this.#running ??= this.#loop();
    });
  }

  /** What waits leaves at once; a forward under way ends if nobody else is part of it. */
  #abort(reject: Waiting["reject"], signal: AbortSignal): void {
    const before = this.#decodes.length + this.#prompts.length + this.#alone.length;
    const others = <T extends Waiting>(list: T[]) => list.filter((other) => other.reject !== reject);
    this.#decodes = others(this.#decodes);
    this.#prompts = others(this.#prompts);
    this.#alone = others(this.#alone);
    const after = this.#decodes.length + this.#prompts.length + this.#alone.length;
    if (after < before) {
      this.#forward.drop();
      reject(signal.reason);
    } else {
      this.#stopIfUnwanted();
    }
  }

  #stopIfUnwanted(): void {
    if (this.#shares.length === 0 || !this.#shares.every(({ waiting }) => isUnwanted(waiting))) return;
    this.#forward.stop();
  }

  async #loop(): Promise<void> {
    let expected = 0;
    this.#since = performance.now();
    for (;;) {
      if (expected === 0 || this.#decodes.length < expected) await this.#gather(expected);
      expected = 0;
      const alone = this.#alone.shift();
      if (alone !== undefined) {
        release(alone);
        this.#forward.drop();
        await alone.run().then(alone.resolve, alone.reject);
        this.#since = performance.now();
      } else if (this.#decodes.length + this.#prompts.length > 0) {
        expected = await this.#step();
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

  /** One forward; returns how many streams are likely to ask for another row. */
  async #step(): Promise<number> {
    const decodes = this.#takeDecodes();
    const drafts = decodes.map(({ work, rows }) => work.drafts?.slice(0, rows - 1) ?? []);
    if (this.drafter !== undefined && decodes.some(asksForDrafts)) {
      try {
        await this.#draft(this.drafter, decodes, drafts);
      } catch (error) {
        this.#reject(decodes, error);
        return 0;
      }
    }
    const shares: Share[] = [];
    decodes.forEach((waiting, i) => this.#addDecode(shares, waiting, drafts[i]));
    if (this.#prompts.length > 0) this.#addPrompts(shares);
    if (shares.length === 0) return 0;
    const started = performance.now();
    if (decodes.length > 0) this.#lastDecode = started;
    this.#shares = shares;
    let results: Results[];
    try {
      const others = this.#decodes.length + this.#prompts.length + this.#alone.length;
      const run = await this.#forward.run(shares.map(({ part }) => part), others === 0);
      results = run.results;
      this.#note(shares, run.seconds);
    } catch (error) {
      this.#shares = [];
      this.#forward.drop();
      this.#fail(shares, error);
      return 0;
    }
    this.#shares = [];
    this.#retried = false;
    let streams = 0;
    for (let i = 0; i < shares.length; i++) if (this.#finish(shares[i], results[i])) streams++;
    // What has begun ahead is asked for at the next step, which is now, or by nobody.
    if (!this.#goesOn(shares)) this.#forward.drop();
    return streams;
  }

  /**
   * Whether the very sequences of a forward wait for the next. As many others do not count: the pages of one that failed may be
   * theirs before that begins.
   */
  #goesOn(shares: readonly Share[]): boolean {
    return this.#decodes.length === shares.length &&
      shares.every(({ part }, i) => part.sequence === this.#decodes[i].work.sequence);
  }

  /** Learns from a forward that has ended. */
  #note(shares: readonly Share[], seconds: number): void {
    let prompts = 0, decodes = 0;
    for (const { part: { rowClass, tokens } } of shares) {
      if (rowClass === "prefill") prompts += tokens.length;
      else decodes += tokens.length;
    }
    this.#pace.note(prompts, decodes, seconds);
    const now = performance.now();
    if (prompts === 0) this.costs.note(shares.length, decodes, (now - this.#since) / 1000);
    this.#since = now;
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

  /** Puts drafts of the drafter, which takes all sequences in one step, in the place of those of work that asks for it. */
  async #draft(drafter: Drafter, decodes: readonly WaitingDecode[], drafts: number[][]): Promise<void> {
    this.#forward.drop();
    const asking = decodes.filter(asksForDrafts);
    const requests = asking.map(({ work, rows }) => ({
      ...work.draft!,
      count: rows - 1,
      length: work.sequence.length,
      tables: work.sequence.tables,
    }));
    const started = performance.now();
    const found = await draftTokens(drafter, requests, undefined).catch((error) => {
      this.#forward.check(); // the drafter is closed with the model, which is what the caller knows
      throw error;
    });
    const steps = requests.reduce((most, { count }) => Math.max(most, count), 0);
    const now = performance.now();
    this.costs.noteSteps(steps, (now - started) / 1000);
    this.#since += now - started;
    asking.forEach((waiting, i) => drafts[decodes.indexOf(waiting)] = found[i]);
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
      this.#forward.drop();
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
        waiting.work.goOn?.();
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
    release(waiting);
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
      if (!again || isUnwanted(waiting)) this.#reject([waiting], error);
      else if ("work" in waiting) decodes.push(waiting);
      else prompts.push(waiting);
    }
    this.#decodes.unshift(...decodes);
    this.#prompts.unshift(...prompts);
  }

  /** Ends work with the reason of its own signal, or with what went wrong. */
  #reject(list: readonly Waiting[], error: unknown): void {
    for (const waiting of list) {
      release(waiting);
      waiting.reject(waiting.signal?.aborted ? waiting.signal.reason : error);
    }
  }
}

/** Whether its reader left. */
function hasLeft(waiting: Waiting | WaitingDecode): boolean {
  return "work" in waiting && waiting.work.left === true;
}

/** Whether nobody wants the work any more. */
function isUnwanted(waiting: Waiting | WaitingDecode): boolean {
  return waiting.signal?.aborted === true || hasLeft(waiting);
}

/** Whether the drafter network is to draft for it. */
function asksForDrafts({ work, rows, signal }: WaitingDecode): boolean {
  return work.draft !== undefined && rows > 1 && !signal?.aborted;
}

function leftError(): Error {
  return new DOMException("Its reader left.", "AbortError");
}
