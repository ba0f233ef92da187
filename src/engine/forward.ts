/**
 * Runs forwards of one model: its passes, its KV pages, and the turn-taking of everybody who wants one. A forward is one
 * run of a plan; the caller's `take` sees its results before the next one may begin.
 */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { PagePool } from "../cache/pages.ts";
import { PrefixCache } from "../cache/prefix.ts";
import { type PageStore, Sequence } from "../cache/sequence.ts";
import { DeviceError, Disposed } from "../errors.ts";
import { pageBytes, type PageGroup } from "../schedule/groups.ts";
import { tensorBytes } from "../schedule/plan.ts";
import { OUTPUT, type TextPlan } from "../schedule/text.ts";
import type { Warning } from "../warning.ts";
import { encodeInput, type InputRow, type OutputRow, type RunInput } from "./input.ts";
import { Turns } from "./turns.ts";
import type { WeightLayout } from "./weights.ts";

/** Candidates in one row. */
export const CANDIDATES = 256;

/** A plan, compiled. */
export interface CompiledPlan {
  plan: TextPlan;
  pass: Pass;
  /** holds the activations */ arena: Buffer;
}

/** What a `Forward` is made of; it owns all of it but the device. */
export interface ForwardParts {
  device: Device;
  /** where the weights lie in the plans */ layout: WeightLayout;
  groups: readonly PageGroup[];
  kvFormat: "f16" | "f32";
  kvPages: readonly number[];
  /** the pages of each group */ kv: Buffer[];
  /** all buffers, to be released in the end */ buffers: Buffer[];
  prefill: CompiledPlan;
  decode: CompiledPlan;
  /** compiles the decode plan that keeps its states; called once at most */
  compileTrace(): Promise<CompiledPlan>;
  /** rows of one prefill chunk at most */ chunkRows: number;
  /** predicted time of a chunk at most, in seconds */ chunkSeconds: number;
  /** rows of one chunk at least, whatever their predicted time */ leastChunkRows: number;
}

/** What a drafter shares with its target. The buffers stay the target's. */
export interface SharedParts
  extends Pick<ForwardParts, "device" | "layout" | "groups" | "kvFormat" | "kvPages" | "kv"> {
  /** in the order of the layout */ weightBuffers: readonly Buffer[];
  exact: boolean;
}

/** Bits of the output mask. */
export const CANDIDATE_OUTPUTS: number = 1 << OUTPUT.ids | 1 << OUTPUT.values | 1 << OUTPUT.stats;
/** The logits alone. */
export const LOGITS_OUTPUT: number = 1 << OUTPUT.logits;

/** What a row asks of the device beside its logits. */
export type RowRequest = Omit<OutputRow, "row">;

/** Results of one forward. The views are valid until `take` returns. */
export class Results {
  /** output rows of this run */
  readonly rows: number;
  readonly #views: ReadonlyMap<number, Uint8Array<ArrayBuffer>>;
  readonly #plan: TextPlan;
  readonly #arena: Buffer;

  constructor(
    plan: TextPlan,
    arena: Buffer,
    views: ReadonlyMap<number, Uint8Array<ArrayBuffer>>,
    rows: number,
  ) {
    this.#plan = plan;
    this.#arena = arena;
    this.#views = views;
    this.rows = rows;
  }

  /** u32 [256] candidate ids of output row `row`. */
  ids(row: number): Uint32Array {
    const view = this.#view(OUTPUT.ids);
    return new Uint32Array(view.buffer, view.byteOffset + row * CANDIDATES * 4, CANDIDATES);
  }

  /** f32 [256] their adjusted logits. */
  values(row: number): Float32Array {
    return this.#floats(OUTPUT.values, row, CANDIDATES);
  }

  /** f32 [4]: raw log-sum-exp, that of adjusted / temperature, largest adjusted logit, 0. */
  stats(row: number): Float32Array {
    return this.#floats(OUTPUT.stats, row, 4);
  }

  /** f32 of output `index`, all rows. */
  all(index: number): Float32Array {
    const view = this.#view(index);
    return new Float32Array(view.buffer, view.byteOffset, view.byteLength / 4);
  }

  /** f32 [H] of the last (only) row: the states that a traced plan keeps, read from the device. */
  states(): Float32Array<ArrayBuffer>[] {
    return this.#plan.states.map((tensor) => {
      const state = new Float32Array(tensor.shape[1] as number);
      this.#arena.read(tensor.offset, state);
      return state;
    });
  }

  /** f32 [V] raw logits of output row `row`, read from the device; a copy. */
  logits(row: number): Float32Array<ArrayBuffer> {
    const V = this.#plan.vocabularySize;
    const logits = new Float32Array(V);
    this.#arena.read(this.#plan.outputs[OUTPUT.logits].offset + row * V * 4, logits);
    return logits;
  }

  #floats(index: number, row: number, width: number): Float32Array {
    const view = this.#view(index);
    return new Float32Array(view.buffer, view.byteOffset + row * width * 4, width);
  }

  #view(index: number): Uint8Array<ArrayBuffer> {
    const view = this.#views.get(index);
    if (view === undefined) throw new RangeError(`Output ${index} was not asked for.`);
    return view;
  }
}

/** How to run a prompt. */
export interface PrefillOptions {
  /** rows at the end that produce output */ outputs: number;
  mask: number;
  /** what the last row asks for */ last?: RowRequest;
  signal?: AbortSignal;
}

/** See the head of this file. */
export class Forward implements AsyncDisposable {
  readonly #parts: ForwardParts;
  readonly #turns = new Turns();
  readonly #store: PageStore;
  #output: Uint8Array<ArrayBuffer> = new Uint8Array(0);
  #trace: Promise<CompiledPlan> | undefined;
  #secondsPerRow = 0;
  /** rows of a chunk at most; halved when the device gave up on one */
  #chunkLimit: number;
  #closed = false;

  /** Prefixes that later prompts can reuse. */
  readonly prefixes: PrefixCache;
  /** What was changed on the way, for people. */
  readonly warnings: Warning[] = [];
  /** Forwards so far, rows of them, and rows that produced output. */
  readonly counts: { forwards: number; rows: number; outRows: number } = { forwards: 0, rows: 0, outRows: 0 };

  /** `keptPrefixes`: snapshots that the prefix cache holds at most. */
  constructor(parts: ForwardParts, keptPrefixes: number) {
    this.#parts = parts;
    this.prefixes = new PrefixCache(keptPrefixes);
    this.#chunkLimit = parts.chunkRows;
    const bytes = parts.groups.map((group) => pageBytes(group, parts.kvFormat));
    this.#store = {
      groups: parts.groups,
      pools: parts.groups.map((group, g) => new PagePool(group.name, parts.kvPages[g], bytes[g])),
      copyPage: (g, from, to) => {
        const buffer = parts.kv[g];
        buffer.copy(to * bytes[g], buffer, from * bytes[g], bytes[g]);
      },
      evict: () => this.prefixes.evict(),
    };
  }

  /** The page groups of the KV cache. */
  get groups(): readonly PageGroup[] {
    return this.#parts.groups;
  }

  /** What a drafter of this model reads. */
  get shared(): SharedParts {
    this.#check();
    const { device, layout, groups, kvFormat, kvPages, kv, buffers, decode } = this.#parts;
    const weightBuffers = buffers.slice(1 + kv.length);
    return { device, layout, groups, kvFormat, kvPages, kv, weightBuffers, exact: decode.plan.exact };
  }

  /** A new, empty sequence. */
  sequence(): Sequence {
    this.#check();
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
    return this.#parts.chunkRows;
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
    const { out_rows } = this.#parts.prefill.plan.limits;
    const firstOutput = ids.length - options.outputs;
    let retried = false;
    for (let start = 0; start < ids.length;) {
      let end = Math.min(ids.length, start + this.#nextChunk());
      end = Math.min(end, Math.max(start, firstOutput) + out_rows);
      try {
        await this.#turns.take(options.signal, () => this.#chunk(sequence, ids, start, end, options, take));
      } catch (error) {
        const rows = end - start;
        if (retried || rows === 1 || !(error instanceof DeviceError && error.code === "timeout")) throw error;
        retried = true;
        this.#chunkLimit = Math.ceil(rows / 2);
        this.warnings.push({
          code: "chunk_halved",
          message:
            `The device gave up on a chunk of ${rows} rows; chunks have ${this.#chunkLimit} rows at most now.`,
        });
        continue;
      }
      retried = false;
      start = end;
    }
  }

  /** Runs rows [start, end) of a prompt. */
  async #chunk(
    sequence: Sequence,
    ids: readonly number[],
    start: number,
    end: number,
    { outputs: wanted, last, mask, signal }: PrefillOptions,
    take: (results: Results) => void,
  ): Promise<void> {
    this.#check();
    sequence.prepare(end - start);
    const position = sequence.length;
    const rows = ids.slice(start, end).map((token, i): InputRow => ({
      token,
      position: position + i,
      sequence: 0,
      rowClass: "prefill",
    }));
    const outputs: OutputRow[] = [];
    for (let at = Math.max(start, ids.length - wanted); at < end; at++) {
      outputs.push({ row: at - start, ...(at === ids.length - 1 ? last : {}) });
    }
    const results = await this.#run(
      this.#parts.prefill,
      sequence,
      { rows, outputs },
      outputs.length > 0 ? mask : 0,
      outputs.length,
      signal,
    );
    sequence.commit(end - start);
    if (outputs.length > 0) take(results);
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
    return await this.#turns.take(signal, async () => {
      return await this.#single(this.#parts.decode, sequence, token, request, mask, signal, take);
    });
  }

  /** As `decode`, but `take` can read the states between layers. */
  async trace<T>(
    sequence: Sequence,
    token: number,
    signal: AbortSignal | undefined,
    take: (results: Results) => T,
  ): Promise<T> {
    this.#check();
    const compiled = await (this.#trace ??= this.#parts.compileTrace());
    return await this.#turns.take(signal, async () => {
      return await this.#single(compiled, sequence, token, {}, 0, signal, take);
    });
  }

  /** Reads the bytes of one KV page. */
  async readPage(group: number, page: number, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    this.#check();
    await this.#parts.kv[group].readAsync(page * bytes.length, bytes);
  }

  /** Overwrites the bytes of one KV page. */
  async writePage(group: number, page: number, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    this.#check();
    await this.#parts.kv[group].writeAsync(page * bytes.length, bytes);
  }

  /** Ends the forward under way, refuses later ones and releases passes and buffers at once or right after it. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    const { prefill, decode, buffers } = this.#parts;
    this.prefixes.clear();
    for (const { pass } of [prefill, decode]) pass[Symbol.dispose]();
    void this.#trace?.then(({ pass, arena }) => {
      pass[Symbol.dispose]();
      arena[Symbol.dispose]();
    }, () => {});
    for (const buffer of buffers) buffer[Symbol.dispose]();
  }

  /** As `close`, and waits for the forward under way. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
    await this.#turns.idle();
    await this.#trace?.catch(() => {});
  }

  async #single<T>(
    compiled: CompiledPlan,
    sequence: Sequence,
    token: number,
    request: RowRequest,
    mask: number,
    signal: AbortSignal | undefined,
    take: (results: Results) => T,
  ): Promise<T> {
    this.#check();
    sequence.prepare(1);
    const rows: InputRow[] = [{ token, position: sequence.length, sequence: 0, rowClass: "decode" }];
    const outputs: OutputRow[] = [{ row: 0, ...request }];
    const results = await this.#run(compiled, sequence, { rows, outputs }, mask, 1, signal);
    sequence.commit(1);
    return take(results);
  }

  async #run(
    { plan, pass, arena }: CompiledPlan,
    sequence: Sequence,
    run: { rows: InputRow[]; outputs: OutputRow[] },
    mask: number,
    outRows: number,
    signal: AbortSignal | undefined,
  ): Promise<Results> {
    const input: RunInput = {
      rows: run.rows,
      outputs: run.outputs,
      sequences: [sequence.tables],
      groups: plan.groups,
      vocabularySize: plan.vocabularySize,
      outputMask: mask,
    };
    const views = new Map<number, Uint8Array<ArrayBuffer>>();
    const sizes = plan.outputs.map((tensor, i) =>
      mask >> i & 1 ? tensorBytes(tensor, { ...plan.limits, rows: outRows, out_rows: outRows }) : 0
    );
    const bytes = sizes.reduce((sum, size) => sum + size, 0);
    if (this.#output.length < bytes) this.#output = new Uint8Array(bytes);
    let at = 0;
    sizes.forEach((size, i) => {
      if (size > 0) views.set(i, this.#output.subarray(at, at += size));
    });
    const output = this.#output.subarray(0, bytes);
    const statistics = await pass.run(encodeInput(input), output, { signal }).catch((error) => {
      sequence.truncate(sequence.length); // gives the prepared pages back
      this.#check(); // the pass is closed with the model, which is what the caller knows
      throw error;
    });
    this.counts.forwards++;
    this.counts.rows += run.rows.length;
    this.counts.outRows += outRows;
    if (run.rows.length >= this.#parts.leastChunkRows) {
      const seconds = statistics.wallNs * 1e-9 / run.rows.length;
      this.#secondsPerRow = this.#secondsPerRow === 0 ? seconds : (this.#secondsPerRow + seconds) / 2;
    }
    return new Results(plan, arena, views, outRows);
  }

  /** Rows of the next chunk: as many as fit the time, by the rows measured so far. */
  #nextChunk(): number {
    const { chunkSeconds, leastChunkRows } = this.#parts;
    if (this.#secondsPerRow === 0) return this.#chunkLimit;
    const fitting = Math.floor(chunkSeconds / this.#secondsPerRow / 32) * 32;
    return Math.min(this.#chunkLimit, Math.max(leastChunkRows, fitting));
  }

  #check(): void {
    if (this.#closed) throw new Disposed("A model");
  }
}
