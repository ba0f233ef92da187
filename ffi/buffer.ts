/** Bytes on a device. */
import { type Bytes, ErrorText, type FixedBytes, fixedBytes, size } from "./call.ts";
import { Handle } from "./handle.ts";
import type { NativeSymbols } from "./library.ts";

/**
 * A native buffer, made by `Device.createBuffer` or `Device.mapFile`. `using` releases it at the end of the scope; `close()`
 * does so at once and throws `Disposed` when called again. A pass keeps the buffers it was compiled with.
 */
export class Buffer implements Disposable, AsyncDisposable {
  readonly #native: NativeSymbols;
  readonly #handle: Handle;
  /** bytes */
  readonly size: number;
  /** false: a mapped file */
  readonly writable: boolean;

  /** Takes over the reference to `pointer`; made by `Device` alone. */
  constructor(native: NativeSymbols, pointer: bigint, writable: boolean) {
    this.#native = native;
    this.#handle = new Handle("A buffer", this, pointer, native.mb_buffer_release);
    this.size = Number(native.mb_buffer_size(pointer));
    this.writable = writable;
  }

  /** The native pointer, for `Device.compile`; the native buffer stays until this is disposed. Throws `Disposed`. */
  hold(): Disposable & { pointer: bigint } {
    return this.#handle.hold();
  }

  /** Fills `destination` from `offset` (bytes) on. Throws `InvalidArgument` beyond the end. */
  read(offset: number, destination: Bytes): void {
    this.#transfer("mb_buffer_read", offset, fixedBytes(destination, "The destination of a read"));
  }

  /** As `read`, on another thread. `destination` must stay untouched until it resolves. */
  async readAsync(offset: number, destination: Bytes): Promise<void> {
    const view = fixedBytes(destination, "The destination of a read");
    await this.#transferAsync("mb_buffer_read_async", offset, view);
  }

  /** Stores `source` from `offset` (bytes) on. Throws `InvalidArgument` beyond the end or in a mapped file. */
  write(offset: number, source: Bytes): void {
    this.#transfer("mb_buffer_write", offset, fixedBytes(source, "The source of a write"));
  }

  /** As `write`, on another thread. `source` must stay untouched until it resolves. */
  async writeAsync(offset: number, source: Bytes): Promise<void> {
    const view = fixedBytes(source, "The source of a write");
    await this.#transferAsync("mb_buffer_write_async", offset, view);
  }

  /** Copies `bytes` bytes from another buffer of the same device; the ranges must not overlap. */
  copy(offset: number, source: Buffer, sourceOffset: number, bytes: number): void {
    const error = new ErrorText();
    error.unwrap(
      this.#native.mb_buffer_copy(
        this.#handle.pointer,
        size(offset, "The offset"),
        source.#handle.pointer,
        size(sourceOffset, "The source offset"),
        size(bytes, "The length"),
        error.bytes,
        error.capacity,
      ),
    );
  }

  /** Sets every byte of [offset, offset + bytes) to `value` (0 … 255). */
  fill(offset: number, bytes: number, value: number): void {
    const error = new ErrorText();
    error.unwrap(
      this.#native.mb_buffer_fill(
        this.#handle.pointer,
        size(offset, "The offset"),
        size(bytes, "The length"),
        value,
        error.bytes,
        error.capacity,
      ),
    );
  }

  #transfer(name: "mb_buffer_read" | "mb_buffer_write", offset: number, view: FixedBytes): void {
    const error = new ErrorText();
    const { pointer } = this.#handle;
    const at = size(offset, "The offset"), bytes = BigInt(view.byteLength);
    error.unwrap(this.#native[name](pointer, at, view, bytes, error.bytes, error.capacity));
  }

  async #transferAsync(
    name: "mb_buffer_read_async" | "mb_buffer_write_async",
    offset: number,
    view: FixedBytes,
  ): Promise<void> {
    const error = new ErrorText();
    const at = size(offset, "The offset"), bytes = BigInt(view.byteLength);
    const status = await this.#handle.use(
      [this, view, error],
      (pointer) => this.#native[name](pointer, at, view, bytes, error.bytes, error.capacity),
    );
    error.unwrap(status);
  }

  /** Releases the buffer. Throws `Disposed` when it already was. */
  close(): void {
    this.#handle.close();
  }

  /** Releases the buffer, after the calls under way; harmless when repeated. */
  [Symbol.dispose](): void {
    this.#handle.dispose();
  }

  /** As `Symbol.dispose`, and waits for the release. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#handle.disposeAsync();
  }
}
