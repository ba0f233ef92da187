/**
 * Forwards of one model: its passes, its KV pages, and what a run of a plan takes and gives. Who may run when is the
 * scheduler's business.
 */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";
import type { Pass, RunStatistics } from "../../ffi/pass.ts";
import { PagePool } from "../cache/pages.ts";
import { PrefixTree } from "../cache/prefix.ts";
import { type PageStore, Sequence } from "../cache/sequence.ts";
import { DeviceError, Disposed } from "../errors.ts";
import { macrotask } from "../event_loop.ts";
import { type KvFormat, pageBytes, type PageGroup } from "../schedule/groups.ts";
import type { TextPlan } from "../schedule/text.ts";
import type { Warning } from "../warning.ts";
import type { Drafter } from "./drafter.ts";
import { followingRun } from "./following.ts";
import { encodeInput } from "./input.ts";
import { gather, type Part, type PrefillOptions, type RowRequest, type SoftRows } from "./part.ts";
import { embedMedia, type MediaPlace, splitBlock } from "./placed.ts";
import { Pace, type PaceOptions } from "./pace.ts";
import { OutputViews, Results } from "./results.ts";
import { Scheduler } from "./scheduler.ts";
import type { DecodeWork } from "./waiting.ts";
import type { WeightLayout } from "./weights.ts";

/** A plan, compiled. */
export interface CompiledPlan {
  plan: TextPlan;
  pass: Pass;
  /** holds the activations */ arena: Buffer;
}

/** What models that see or hear have besides. */
export interface MediaParts extends SoftRows {
  /** of the prefill plan's soft tokens */ soft: Buffer;
}

/** What a `Forward` is made of; it owns all of it but the device. */
export interface ForwardParts extends PaceOptions {
  device: Device;
  /** where the weights lie in the plans */ layout: WeightLayout;
  groups: readonly PageGroup[];
  kvFormat: KvFormat;
  kvPages: readonly number[];
  /** the pages of each group */ kv: Buffer[];
  /** all buffers, to be released in the end */ buffers: Buffer[];
  /** decode rows first, then rows of prompts */ prefill: CompiledPlan;
  /** decode rows alone */ decode: CompiledPlan;
  /** rows that a forward takes where a block asks for more than the pace allows */ blockRows: number;
  /** of models that see or hear */ media?: MediaParts;
  /** compiles the decode plan that keeps its states; called once at most */
  compileTrace(): Promise<CompiledPlan>;
  /** see `SHORT_SECONDS`, which tests change */ shortSeconds?: number;
}

/** What a drafter shares with its target. The buffers stay the target's. */
export interface SharedParts
  extends Pick<ForwardParts, "device" | "layout" | "groups" | "kvFormat" | "kvPages" | "kv"> {
  /** in the order of the layout */ weightBuffers: readonly Buffer[];
  exact: boolean;
}

/**
 * A forward of decode rows that took less is run on the caller's thread the next time: handing it to another and waking up
 * again takes a tenth of a millisecond where cores are few.
 */
const SHORT_SECONDS = 1e-3;

/** See the head of this file. */
export class Forward implements AsyncDisposable {
  readonly #parts: ForwardParts;
  readonly #scheduler: Scheduler;
  readonly #store: PageStore;
  #output: Uint8Array<ArrayBuffer> = new Uint8Array(0);
  /** of the last run: the next is most likely alike */ #views: OutputViews | undefined;
  #trace: Promise<CompiledPlan> | undefined;
  /** of the last forward of decode rows alone */
  #decodeSeconds = Infinity;
  #closed = false;
  /** `stop` was called since the last forward began */
  #stopped = false;

  /** Prefixes that later prompts can reuse. */
  readonly prefixes: PrefixTree;
  /** What was changed on the way, for people. */
  readonly warnings: Warning[] = [];
  /**
   * Forwards so far, rows of them, rows that produced output, forwards of both prompts and decode rows, those that had begun
   * before they were asked for, and those in whose place others had.
   */
  readonly counts: {
    forwards: number;
    rows: number;
    outRows: number;
    mixed: number;
    ahead: number;
    instead: number;
  } = {
    forwards: 0,
    rows: 0,
    outRows: 0,
    mixed: 0,
    ahead: 0,
    instead: 0,
  };

  /** `keptPrefixes`: pages of each group that the prefix cache keeps at most. */
  constructor(parts: ForwardParts, keptPrefixes: number = Infinity) {
    this.#parts = parts;
    const bytes = parts.groups.map((group) => pageBytes(group, parts.kvFormat));
    this.#store = {
      groups: parts.groups,
      pools: parts.groups.map((group, g) => new PagePool(group.name, parts.kvPages[g], bytes[g])),
      copyPage: (g, from, to) => {
        const buffer = parts.kv[g];
        buffer.copy(to * bytes[g], buffer, from * bytes[g], bytes[g]);
      },
      forget: (g, page) => this.prefixes.forget(g, page),
    };
    this.prefixes = new PrefixTree(this.#store, keptPrefixes);
    this.#scheduler = new Scheduler(this, new Pace(parts), {
      decodeRows: parts.decode.plan.limits.out_rows,
      outRows: parts.prefill.plan.limits.out_rows,
      sequences: parts.prefill.plan.limits.sequences,
      blockRows: parts.blockRows,
    });
  }

  /** Whether a forward that has begun before it was asked for leaves the logits of the one before as they are until then. */
  get keepsLogits(): boolean {
    return this.#parts.device.kind === "cpu";
  }

  /** The page groups of the KV cache. */
  get groups(): readonly PageGroup[] {
    return this.#parts.groups;
  }

  /** What a drafter of this model reads. */
  get shared(): SharedParts {
    this.check();
    const { device, layout, groups, kvFormat, kvPages, kv, buffers, decode } = this.#parts;
    const weightBuffers = buffers.slice(1 + kv.length);
    return { device, layout, groups, kvFormat, kvPages, kv, weightBuffers, exact: decode.plan.exact };
  }

  /** Takes over a drafter, which decode work may ask for drafts. */
  set drafter(drafter: Drafter) {
    this.#scheduler.drafter = drafter;
  }

  /** A new, empty sequence. */
  sequence(): Sequence {
    this.check();
    return new Sequence(this.#store);
  }

  /** Bytes of KV pages: capacity, and held by sequences or the prefix cache. */
  get kvBytes(): { capacity: number; used: number } {
    const { groups, kvFormat } = this.#parts;
    let capacity = 0, used = 0;
    this.#store.pools.forEach((pool, g) => {
      const bytes = pageBytes(groups[g], kvFormat);
      capacity += pool.capacity * bytes;
      used += (pool.capacity - pool.free) * bytes;
    });
    return { capacity, used };
  }

  /** Rows of one prefill chunk at most. */
  get chunkRows(): number {
    return Math.max(this.#parts.chunkRows, this.#parts.blockRows);
  }

  /** Where a timeline with this media may be cut: the largest length up to another that splits no block. */
  cut(media: readonly MediaPlace[] | undefined): (length: number) => number {
    if (!this.#parts.media?.blocks || media === undefined) return (length) => length;
    return (length) => splitBlock(media, length)?.start ?? length;
  }

  /** Most decode rows of one forward. */
  get decodeRows(): number {
    return this.#parts.decode.plan.limits.out_rows;
  }

  /**
   * Appends prompt tokens to a sequence, chunk by chunk. `take` is called for each chunk with output rows, in order.
   * Rejects with `MemoryLimit`, the signal's reason or a `DeviceError`; chunks that were done stay in the sequence.
   */
  async prefill(
    sequence: Sequence,
    ids: readonly number[],
    options: PrefillOptions,
    take: (results: Results) => void,
  ): Promise<void> {
    const { media = [], signal } = options;
    const embedded = media.length > 0 ? await embedMedia(media, sequence.length, signal) : undefined;
    await this.#scheduler.prompt(sequence, ids, { ...options, media: embedded }, take);
  }

  /** Appends one generated token to a sequence. Rejects like `prefill`. */
  async decode<T>(
    sequence: Sequence,
    token: number,
    request: RowRequest,
    mask: number,
    signal: AbortSignal | undefined,
    take: (results: Results) => T,
  ): Promise<T> {
    let value: T;
    await this.speculate({
      sequence,
      mask,
      signal,
      rows: 1,
      build: () => ({ tokens: [token], requests: [request] }),
      take: (results) => {
        value = take(results);
        return 1;
      },
    });
    return value!;
  }

  /** See `DraftCosts.of`. */
  draftCost(drafts: number, isNetwork: boolean): number | undefined {
    return this.#scheduler.costs.of(drafts, isNetwork);
  }

  /** Appends a generated token and drafts of what follows it, of which those stay that `work.take` says. */
  speculate(work: DecodeWork): Promise<void> {
    return this.#scheduler.decode(work);
  }

  /** Ends work that `speculate` was asked for: it rejects, and its sequence can be used once it has. */
  leave(work: DecodeWork): void {
    this.#scheduler.leave(work);
  }

  /** As `decode` in a forward of its own, and `take` can read the states between layers. */
  async trace<T>(
    sequence: Sequence,
    token: number,
    signal: AbortSignal | undefined,
    take: (results: Results) => T,
  ): Promise<T> {
    this.check();
    const compiled = await (this.#trace ??= this.#parts.compileTrace().catch((error) => {
      this.#trace = undefined; // memory may be free the next time
      throw error;
    }));
    return await this.#scheduler.alone(signal, async () => {
      this.check();
      sequence.prepare(1);
      const part: Part = { sequence, tokens: [token], rowClass: "decode", requests: [{}], mask: 0 };
      try {
        const { results } = await this.#run(compiled, [part], signal);
        sequence.commit(1);
        return take(results[0]);
      } catch (error) {
        sequence.truncate(sequence.length);
        throw error;
      }
    });
  }

  /**
   * Runs one forward; decode parts come first. It begins before the call returns, unless there are soft tokens. The caller commits
   * or gives back what the sequences prepared. `goesOn`: nothing else waits, so that the next forward may begin as soon as this one
   * ends; `drop` must be called before anything but its like is done with the sequences.
   */
  run(parts: readonly Part[], goesOn = false): Promise<{ results: Results[]; seconds: number }> {
    const { prefill, decode } = this.#parts;
    if (parts.at(-1)!.rowClass !== "prefill") return this.#run(decode, parts, undefined, goesOn);
    this.drop();
    return this.#run(prefill, parts);
  }

  /** Ends a forward that has begun and will not be asked for. */
  drop(): void {
    this.#parts.decode.pass.drop();
  }

  /** Ends the forward of `run` that is under way: it rejects. */
  stop(): void {
    this.#stopped = true;
    if (!this.#closed) this.#parts.prefill.pass.cancel(), this.#parts.decode.pass.cancel();
  }

  /** Reads the bytes of one KV page. */
  async readPage(group: number, page: number, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    this.check();
    await this.#parts.kv[group].readAsync(page * bytes.length, bytes);
  }

  /** Overwrites the bytes of one KV page. */
  async writePage(group: number, page: number, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    this.check();
    await this.#parts.kv[group].writeAsync(page * bytes.length, bytes);
  }

  /** Ends the forward under way, refuses later ones and releases passes and buffers at once or right after it. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    const { prefill, decode, buffers } = this.#parts;
    this.prefixes.clear();
    this.#scheduler.close();
    for (const { pass } of [prefill, decode]) pass[Symbol.dispose]();
    void this.#trace?.then(({ pass, arena }) => {
      pass[Symbol.dispose]();
      arena[Symbol.dispose]();
    }, () => {});
    for (const buffer of buffers) buffer[Symbol.dispose]();
    this.#parts.media?.soft[Symbol.dispose]();
  }

  /** As `close`, and waits for the forward under way. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
    await this.#scheduler.idle();
    await this.#trace?.catch(() => {});
  }

  /** Throws `Disposed` after `close`. */
  check(): void {
    if (this.#closed) throw new Disposed("A model");
  }

  async #run(
    { plan, pass, arena }: CompiledPlan,
    parts: readonly Part[],
    signal?: AbortSignal,
    goesOn = false,
  ): Promise<{ results: Results[]; seconds: number }> {
    this.check();
    this.#stopped = false;
    const { rows, outputs, mask, soft } = gather(parts, this.#parts.media);
    const count = outputs.length;
    const views = this.#outputs(plan, mask, count);
    if (soft.length > 0) {
      await this.#writeSoft(plan, soft);
      if (this.#stopped) throw new DeviceError("cancelled", "The forward was stopped before it began.");
    }
    const input = encodeInput({
      rows,
      outputs,
      sequences: parts.map(({ sequence }) => sequence.tables),
      groups: plan.groups,
      vocabularySize: plan.vocabularySize,
      outputMask: mask,
    });
    const output = this.#output.subarray(0, views.bytes);
    const { device, decode } = this.#parts;
    const isDecode = pass === decode.pass;
    const isShort = isDecode && this.#decodeSeconds < (this.#parts.shortSeconds ?? SHORT_SECONDS);
    const foreseen = !isDecode ? undefined : device.kind === "cpu" ? "block" : "look";
    let statistics: RunStatistics;
    try {
      statistics = isShort
        ? await this.#runHere(pass, input, output, signal)
        : await pass.run(input, output, {
          signal,
          foreseen,
          following: goesOn ? () => followingRun(input, parts, views) : undefined,
        });
    } catch (error) {
      this.check(); // the pass is closed with the model, which is what the caller knows
      throw error;
    }
    const { wallNs } = statistics;
    if (isDecode) this.#decodeSeconds = wallNs * 1e-9;
    this.counts.forwards++;
    if (statistics.ahead) this.counts.ahead++;
    if (statistics.instead) this.counts.instead++;
    this.counts.rows += rows.length;
    this.counts.outRows += count;
    if (rows[0].rowClass !== rows.at(-1)!.rowClass) this.counts.mixed++;
    let first = 0;
    const results = parts.map(({ requests }) =>
      new Results(views, arena, (first += requests.length) - requests.length, requests.length)
    );
    return { results, seconds: wallNs * 1e-9 };
  }

  /** Where the outputs of a run lie in `#output`, which has room for them. */
  #outputs(plan: TextPlan, mask: number, count: number): OutputViews {
    const last = this.#views;
    if (last !== undefined && last.plan === plan && last.mask === mask && last.count === count) return last;
    return this.#views = new OutputViews(plan, mask, count, (bytes) => {
      if (this.#output.length < bytes) this.#output = new Uint8Array(bytes);
      return this.#output;
    });
  }

  /** Runs a pass on this thread, then gives everything else that waits for this thread its turn. */
  async #runHere(
    pass: Pass,
    input: Uint8Array<ArrayBuffer>,
    output: Uint8Array<ArrayBuffer>,
    signal: AbortSignal | undefined,
  ): Promise<RunStatistics> {
    signal?.throwIfAborted();
    const statistics = pass.runSync(input, output);
    await macrotask();
    this.check(); // it may have been closed meanwhile
    return statistics;
  }

  async #writeSoft({ softBuffer }: TextPlan, soft: readonly Float32Array[]): Promise<void> {
    const { width, soft: buffer } = this.#parts.media!;
    if (softBuffer === undefined) throw new RangeError("Soft tokens are rows of prompts.");
    const values = new Float32Array(soft.length * width);
    soft.forEach((row, i) => values.set(row, i * width));
    await buffer.writeAsync(0, values);
  }
}
