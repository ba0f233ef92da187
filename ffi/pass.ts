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
}

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
   * Looks for the end of the run in every turn of the event loop from about when it is due, by the time of the last run: waking
   * threads up takes some 50 µs each. Timers and I/O have their turns meanwhile, but one core is busy with it: for devices that
   * leave the cores to others.
   */
  awake?: boolean;
}

const CANCELLED = 10; // MB_CANCELLED
const NO_OUTPUT = new Uint8Array(0);
/** Milliseconds before its end at which a run is looked for: a timer of one comes after 2.2, now and then after 5. */
const EARLY = 4;
/** Milliseconds after which a run that is late is waited for on another thread. */
const LATE = 1;

/**
 * Made by `Device.compile`. Runs of one pass take turns. `using` closes it at the end of the scope: a run under way is cancelled
 * and rejects with `Disposed`, and the native object is released after it; `await using` waits for that. `close()` is the same
 * at once, but throws `Disposed` when called again.
 */
export class Pass implements Disposable, AsyncDisposable {
  readonly #native: NativeSymbols;
  readonly #handle: Handle;
  /** settles when the last run that was asked for has ended */
  #tail: Promise<unknown> = Promise.resolve();
  #running = false;
  #cancelled = false;
  /** nanoseconds that the last run took */
  #lastNs: number | undefined;
  /** changes with each `cancel()`, so that runs still waiting for their turn know of it */
  #cancels = 0;

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
  async run(input: Bytes, output: Bytes = NO_OUTPUT, options: RunOptions = {}): Promise<RunStatistics> {
    const source = fixedBytes(input, "The input of a run");
    const target = fixedBytes(output, "The output of a run");
    const statistics = new BigUint64Array(8);
    const awake = options.awake && this.#lastNs !== undefined;
    await this.#inTurn(
      [source, target, statistics],
      options.signal,
      (pointer, error) =>
        awake ? this.#runAwake(pointer, source, target, statistics, error) : this.#native.mb_pass_run_async(
          pointer,
          source,
          BigInt(source.byteLength),
          target,
          BigInt(target.byteLength),
          statistics,
          error.bytes,
          error.capacity,
        ),
    );
    const read = readStatistics(statistics);
    this.#lastNs = read.wallNs;
    return read;
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
    const statistics = new BigUint64Array(8);
    const error = new ErrorText();
    error.unwrap(
      this.#native.mb_pass_run(
        pointer,
        source,
        BigInt(source.byteLength),
        target,
        BigInt(target.byteLength),
        statistics,
        error.bytes,
        error.capacity,
      ),
    );
    return readStatistics(statistics);
  }

  /** Runs the plan `repetitions` times and returns the device time of each in seconds. Nothing is copied out. */
  async time(input: Bytes, repetitions: number, options: RunOptions = {}): Promise<Float64Array> {
    if (!Number.isSafeInteger(repetitions) || repetitions < 1) {
      throw new InvalidArgument(`repetitions is ${repetitions}; it must be a whole number from 1 on.`);
    }
    const source = fixedBytes(input, "The input of a run");
    const seconds = new Float64Array(repetitions);
    await this.#inTurn([source, seconds], options.signal, (pointer, error) =>
      this.#native.mb_pass_time_async(
        pointer,
        source,
        BigInt(source.byteLength),
        seconds,
        BigInt(repetitions),
        error.bytes,
        error.capacity,
      ));
    return seconds;
  }

  /** Ends the run under way at its next op, and those that wait for their turn: they reject with a "cancelled" `DeviceError`. */
  cancel(): void {
    const pointer = this.#handle.pointer;
    this.#cancels++;
    if (this.#running) this.#cancelNative(pointer);
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

  /** A run that is looked for; returns its status. */
  async #runAwake(
    pointer: bigint,
    source: FixedBytes,
    target: FixedBytes,
    statistics: BigUint64Array<ArrayBuffer>,
    error: ErrorText,
  ): Promise<number> {
    const native = this.#native;
    const begun = native.mb_pass_start(
      pointer,
      source,
      BigInt(source.byteLength),
      error.bytes,
      error.capacity,
    );
    if (begun !== 0) return begun;
    const due = performance.now() + this.#lastNs! / 1e6;
    while (native.mb_pass_ended(pointer) === 0) {
      const left = due - performance.now();
      if (left < -LATE) break;
      await (left > EARLY ? delay(1) : macrotask());
    }
    const finish = native.mb_pass_ended(pointer) === 0 ? native.mb_pass_finish_async : native.mb_pass_finish;
    return await finish(
      pointer,
      target,
      BigInt(target.byteLength),
      statistics,
      error.bytes,
      error.capacity,
    );
  }

  /** Makes a nonblocking call once the calls before it have returned. `buffers` stay alive meanwhile. */
  #inTurn(
    buffers: readonly unknown[],
    signal: AbortSignal | undefined,
    call: (pointer: bigint, error: ErrorText) => Promise<number>,
  ): Promise<void> {
    signal?.throwIfAborted();
    this.#handle.pointer; // throws Disposed now rather than in turn
    const cancels = this.#cancels;
    const turn = this.#tail.then(async () => {
      signal?.throwIfAborted();
      if (cancels !== this.#cancels) {
        throw new DeviceError("cancelled", "The run was cancelled before it began.");
      }
      await this.#call(buffers, signal, call);
    });
    this.#tail = turn.catch(() => {}); // the caller gets the error
    return turn;
  }

  async #call(
    buffers: readonly unknown[],
    signal: AbortSignal | undefined,
    call: (pointer: bigint, error: ErrorText) => Promise<number>,
  ): Promise<void> {
    const error = new ErrorText();
    const pointer = this.#handle.pointer;
    const abort = () => this.#cancelNative(pointer);
    signal?.addEventListener("abort", abort);
    this.#running = true;
    const status = await this.#handle.use([this, error, ...buffers], async () => {
      const status = await call(pointer, error);
      this.#running = false; // from here on a cancel concerns later runs
      signal?.removeEventListener("abort", abort);
      if (this.#cancelled) this.#native.mb_pass_resume(pointer);
      this.#cancelled = false;
      return status;
    });
    if (status === CANCELLED && this.#handle.closed) throw new Disposed("A pass");
    if (status === CANCELLED) signal?.throwIfAborted();
    error.unwrap(status);
  }
}

function readStatistics(values: BigUint64Array): RunStatistics {
  return {
    wallNs: Number(values[0]),
    deviceNs: Number(values[1]),
    dispatches: Number(values[2]),
    commandBuffers: Number(values[3]),
    waits: Number(values[4]),
  };
}

function delay(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
