/** A compiled plan, ready to run. */
import { DeviceError, Disposed, InvalidArgument } from "../src/errors.ts";
import { macrotask } from "../src/event_loop.ts";
import { type Bytes, ErrorText, type FixedBytes, fixedBytes, readText } from "./call.ts";
import { Handle } from "./handle.ts";
import type { NativeSymbols } from "./library.ts";

/** What one run cost. */
export interface RunStatistics {
  /** nanoseconds from call to return */ wallNs: number;
  /** nanoseconds that the device was busy */ deviceNs: number;
  /** kernels started */ dispatches: number;
  /** handed to the device */ commandBuffers: number;
  /** times that the host waited for the device */ waits: number;
  /** the run began before it was asked for, right after the one that it was to follow */ ahead: boolean;
  /** another run had begun in its place, with another input */ instead: boolean;
}

/** A run that is to follow another one at once; see `mb_pass_follow` in `dylib/markbase.h`. */
export interface FollowingRun {
  /** its input block, with any tokens: they are drawn from what the run before it gives */ input: Uint8Array<
    ArrayBuffer
  >;
  /**
   * how each row's token is drawn, `DRAW_NUMBERS` each; with penalties also what is added to the logit of each adjustment's token if
   * that is drawn
   */
  draws: Float64Array<ArrayBuffer>;
}

/** Numbers that say how a row's token is drawn; `dylib/guess.h` has their order. */
export const DRAW_NUMBERS = 13;

/** The last of them where candidates decide a draw, rather than all logits. */
export const NO_LOGITS = 0xffffffff;

/** What a plan became on its device. */
export interface PassInfo {
  /** of the plan */ ops: number;
  /** of one run with decode rows */ dispatches: number;
  /** that the pass holds beside the plan's arena */ scratchBytes: number;
  /** of weights in another layout */ repackedBytes: number;
  /** metal: barriers of that run */ barriers?: number;
  /** what each op became, in order */ kernels: {
    op: string;
    layer: number | null;
    kernel: string;
    dispatches: number;
    /** where the device was opened with `timeKernels`, of the last run */ seconds?: number;
  }[];
}

/** Options of `Pass.run`. */
export interface RunOptions {
  /** ends the run at its next op; the call then rejects with the signal's reason */
  signal?: AbortSignal;
  /**
   * Expects the run to end when the last one would have, and is there a little before: waking threads up takes some 50
   * µs each, and what leads from one to a promise of this thread as much again. "look" looks in every turn of the event loop then:
   * timers and I/O have theirs, but one core is busy, so it is for devices that leave the cores to others. "block" sleeps in the
   * library, for four milliseconds at most. A run that is later than that is waited for as others are.
   */
  foreseen?: "look" | "block";
  /**
   * Makes the run that will most likely come after a foreseen one, once that has begun. It begins when that ends; `run` takes it over
   * when it is given the very same input, and ends it otherwise, as `drop` does. Until one of them is called it may write what it
   * writes, but no outputs on a CPU.
   */
  following?: () => FollowingRun | undefined;
}

const CANCELLED = 10; // MB_CANCELLED
const NO_OUTPUT = new Uint8Array(0);
/** Nanoseconds before its end at which a run is looked for, and after which one that is late is not. */
const LOOK_EARLY = 4e6, LOOK_LATE = 1e6;
/** Nanoseconds before its end at which a run is waited for in the library, and after which one that is late is not. */
const BLOCK_MOST = 2e6;
/** The same as a part of what the last run took, where that is less. */
const BLOCK_PART = 1 / 8;

/**
 * Made by `Device.compile`. Runs of one pass take turns. `using` closes it at the end of the scope: a run under way is cancelled
 * and rejects with `Disposed`, and the native object is released after it; `await using` waits for that. `close()` is the same
 * at once, but throws `Disposed` when called again.
 */
export class Pass implements Disposable, AsyncDisposable {
  readonly #native: NativeSymbols;
  readonly #handle: Handle;
  /** settles when the last run that was asked for has ended; undefined when none is under way */
  #tail: Promise<void> | undefined;
  #running = false;
  #cancelled = false;
  /** nanoseconds that the last run took */
  #lastNs: number | undefined;
  /** it began ahead */
  #wasAhead = false;
  /** a run may have begun ahead that nobody has asked for */
  #isAhead = false;
  /** changes with each `cancel()`, so that runs still waiting for their turn know of it */
  #cancels = 0;
  /** what the run under way gives beside its output */
  readonly #statistics = new BigUint64Array(8);
  readonly #error = new ErrorText();

  /** Takes over the reference to `pointer`; made by `Device` alone. */
  constructor(native: NativeSymbols, pointer: bigint) {
    this.#native = native;
    this.#handle = new Handle("A pass", this, pointer, native.mb_pass_release);
  }

  /**
   * Runs the plan once, on another thread. `input` is an input block (`encodeInput`); `output` gets the tensors that its
   * mask selects, live rows only, one after another, and must have exactly that many bytes. Both must stay untouched until the
   * promise settles. Rejects with `DeviceError`, `Disposed` or the signal's reason; `output` then holds nothing of use.
   */
  run(input: Bytes, output: Bytes = NO_OUTPUT, options: RunOptions = {}): Promise<RunStatistics> {
    const { signal, foreseen, following } = options;
    return this.#inTurn(
      input,
      output,
      signal,
      (pointer, source, target) =>
        foreseen !== undefined && this.#lastNs !== undefined
          ? this.#runForeseen(pointer, source, target, foreseen, following)
          : this.#native.mb_pass_run_async(
            pointer,
            source,
            BigInt(source.byteLength),
            target,
            BigInt(target.byteLength),
            this.#statistics,
            this.#error.bytes,
            this.#error.capacity,
          ),
      () => {
        const read = readStatistics(this.#statistics);
        this.#lastNs = read.wallNs;
        this.#wasAhead = read.ahead;
        return read;
      },
    );
  }

  /**
   * As `run`, on this thread: saves the microseconds of a thread switch where a run takes little longer than that.
   * Throws `InvalidArgument` while another run of this pass is under way.
   */
  runSync(input: Bytes, output: Bytes = NO_OUTPUT): RunStatistics {
    const source = fixedBytes(input, "The input of a run");
    const target = fixedBytes(output, "The output of a run");
    const pointer = this.#handle.pointer;
    if (this.#running) throw new InvalidArgument("Another run of this pass is under way. Await it first.");
    this.#isAhead = false;
    const error = this.#error;
    error.unwrap(
      this.#native.mb_pass_run(
        pointer,
        source,
        BigInt(source.byteLength),
        target,
        BigInt(target.byteLength),
        this.#statistics,
        error.bytes,
        error.capacity,
      ),
    );
    return readStatistics(this.#statistics);
  }

  /** Runs the plan `repetitions` times and returns the device time of each in seconds. Nothing is copied out. */
  async time(input: Bytes, repetitions: number, options: RunOptions = {}): Promise<Float64Array> {
    if (!Number.isSafeInteger(repetitions) || repetitions < 1) {
      throw new InvalidArgument(`repetitions is ${repetitions}; it must be a whole number from 1 on.`);
    }
    const seconds = new Float64Array(repetitions);
    return await this.#inTurn(
      input,
      NO_OUTPUT,
      options.signal,
      (pointer, source) =>
        this.#native.mb_pass_time_async(
          pointer,
          source,
          BigInt(source.byteLength),
          seconds,
          BigInt(repetitions),
          this.#error.bytes,
          this.#error.capacity,
        ),
      () => seconds,
    );
  }

  /** Ends the run under way at its next op, and those that wait for their turn: they reject with a "cancelled" `DeviceError`. */
  cancel(): void {
    const pointer = this.#handle.pointer;
    this.#cancels++;
    if (this.#running) this.#cancelNative(pointer);
  }

  /** Ends a run that has begun as the `following` one of another, if there is one, and waits for its end: that of the op it is at. */
  drop(): void {
    if (!this.#isAhead || this.#handle.closed) return; // closing ends it too
    this.#isAhead = false;
    this.#native.mb_pass_drop(this.#handle.pointer);
  }

  /** What the plan became on its device. */
  info(): PassInfo {
    const pointer = this.#handle.pointer;
    return JSON.parse(readText((...room) => this.#native.mb_pass_info(pointer, ...room)));
  }

  /** Closes the pass. Throws `Disposed` when it already was. */
  close(): void {
    if (this.#handle.closed) this.#handle.close();
    this[Symbol.dispose]();
  }

  /** Closes the pass; harmless when repeated. */
  [Symbol.dispose](): void {
    if (this.#running && !this.#handle.closed) this.#cancelNative(this.#handle.pointer);
    this.#handle.dispose();
  }

  /** As `Symbol.dispose`, and waits until the run under way has ended and the pass is released. */
  async [Symbol.asyncDispose](): Promise<void> {
    this[Symbol.dispose]();
    await this.#handle.disposeAsync();
  }

  #cancelNative(pointer: bigint): void {
    this.#cancelled = true;
    this.#native.mb_pass_cancel(pointer);
  }

  /** A run that is begun on a thread of the library which is awake, if it can be, and whose end is met; returns its status. */
  async #runForeseen(
    pointer: bigint,
    source: FixedBytes,
    target: FixedBytes,
    how: "look" | "block",
    following: RunOptions["following"],
  ): Promise<number> {
    const native = this.#native;
    const { bytes, capacity } = this.#error;
    const begun = native.mb_pass_start(pointer, source, BigInt(source.byteLength), bytes, capacity);
    this.#isAhead = false;
    if (begun !== 0) return begun;
    const size = BigInt(target.byteLength);
    const finish = () =>
      native.mb_pass_finish_async(pointer, target, size, this.#statistics, bytes, capacity);
    let next: FollowingRun | undefined;
    try {
      next = following?.();
    } catch (error) {
      await finish(); // else none could begin
      throw error;
    }
    if (next !== undefined) {
      this.#isAhead = true;
      const { input, draws } = next;
      const followed = native.mb_pass_follow(
        pointer,
        input,
        BigInt(input.byteLength),
        draws,
        BigInt(draws.length),
        size,
        bytes,
        capacity,
      );
      // If the guess is as right as the last was, nothing waits for this thread at the end.
      if (followed !== 0 || this.#wasAhead) {
        return await finish() || followed;
      }
    }
    const last = this.#lastNs!;
    const early = how === "look" ? LOOK_EARLY : Math.floor(Math.min(BLOCK_MOST, BLOCK_PART * last));
    let ended = last > early ? await native.mb_pass_wait_async(pointer, BigInt(last - early)) : 0;
    if (how === "block" && ended === 0) ended = native.mb_pass_wait(pointer, BigInt(2 * early));
    else if (how === "look") {
      const late = performance.now() + (Math.min(last, early) + LOOK_LATE) / 1e6;
      while (ended === 0 && performance.now() < late) {
        await macrotask();
        ended = native.mb_pass_wait(pointer, 0n);
      }
    }
    if (ended !== 0) return native.mb_pass_finish(pointer, target, size, this.#statistics, bytes, capacity);
    return await finish();
  }

  /**
   * Makes a call of the library once those before it have returned, at once if none is under way, and reads its result before
   * the next can begin. Calls under way keep their buffers alive.
   */
  async #inTurn<T>(
    input: Bytes,
    output: Bytes,
    signal: AbortSignal | undefined,
    call: (pointer: bigint, source: FixedBytes, target: FixedBytes) => Promise<number>,
    result: () => T,
  ): Promise<T> {
    const source = fixedBytes(input, "The input of a run");
    const target = fixedBytes(output, "The output of a run");
    signal?.throwIfAborted();
    this.#handle.pointer; // throws Disposed now rather than in turn
    const cancels = this.#cancels;
    const before = this.#tail;
    const { promise, resolve: leave } = Promise.withResolvers<void>();
    this.#tail = promise;
    let pointer: bigint | undefined;
    const abort = () => this.#cancelNative(pointer!);
    try {
      if (before !== undefined) {
        await before;
        signal?.throwIfAborted();
        if (cancels !== this.#cancels) {
          throw new DeviceError("cancelled", "The run was cancelled before it began.");
        }
      }
      pointer = this.#handle.enter();
      signal?.addEventListener("abort", abort);
      this.#running = true;
      const status = await call(pointer, source, target);
      if (status === CANCELLED && this.#handle.closed) throw new Disposed("A pass");
      if (status === CANCELLED) signal?.throwIfAborted();
      this.#error.unwrap(status);
      return result();
    } finally {
      if (pointer !== undefined) {
        this.#running = false; // from here on a cancel concerns later runs
        signal?.removeEventListener("abort", abort);
        if (this.#cancelled) this.#native.mb_pass_resume(pointer);
        this.#cancelled = false;
        this.#handle.leave();
      }
      if (this.#tail === promise) this.#tail = undefined;
      leave();
    }
  }
}

function readStatistics(values: BigUint64Array): RunStatistics {
  return {
    wallNs: Number(values[0]),
    deviceNs: Number(values[1]),
    dispatches: Number(values[2]),
    commandBuffers: Number(values[3]),
    waits: Number(values[4]),
    ahead: values[5] !== 0n,
    instead: values[6] !== 0n,
  };
}
