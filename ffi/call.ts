/** What every call of the C ABI needs: error texts, status codes, checked buffers, strings. */
import { DeviceError, InvalidArgument } from "../src/errors.ts";

/** Error codes by `mb_status`; 1 becomes an `InvalidArgument`. */
export const STATUS_CODES: readonly string[] = [
  "ok",
  "invalid_argument",
  "invalid_plan",
  "invalid_input",
  "out_of_memory",
  "io",
  "unsupported",
  "no_device",
  "device_lost",
  "timeout",
  "cancelled",
  "not_finite",
  "internal",
];

const ERROR_BYTES = 1024;

/** Room for the error text of one call. Each call has its own, since nonblocking calls overlap. */
export class ErrorText {
  /** `err` of the call */
  readonly bytes: Uint8Array<ArrayBuffer> = new Uint8Array(ERROR_BYTES);
  /** `err_cap` of the call, in bytes */
  readonly capacity: bigint = BigInt(ERROR_BYTES);

  /** Throws the error that a status means; returns for 0. */
  unwrap(status: number): void {
    if (status === 0) return;
    const text = new TextDecoder().decode(this.bytes.subarray(0, this.bytes.indexOf(0)));
    if (status === 1) throw new InvalidArgument(text);
    throw new DeviceError(STATUS_CODES[status] ?? "internal", text);
  }
}

/** Bytes that may be handed to the library. */
export type Bytes = Uint8Array | Float32Array | Float64Array | Uint32Array | BigUint64Array;

/** Such bytes as can neither move nor shrink. */
export type FixedBytes = Bytes & { buffer: ArrayBuffer };

/**
 * The same view, when its memory can neither move nor shrink while the library uses it. Throws `InvalidArgument` for a
 * resizable, shared or detached buffer.
 */
export function fixedBytes<T extends Bytes>(view: T, what: string): T & { buffer: ArrayBuffer } {
  const { buffer } = view;
  const next = "Copy it into a new Uint8Array first.";
  if (!(buffer instanceof ArrayBuffer)) throw new InvalidArgument(`${what} is a shared buffer. ${next}`);
  if (buffer.detached) {
    throw new InvalidArgument(`${what} is a detached buffer: its memory was transferred away.`);
  }
  if (buffer.resizable) throw new InvalidArgument(`${what} is a resizable buffer. ${next}`);
  return view as T & { buffer: ArrayBuffer };
}

/** UTF-8 bytes of a string; lone surrogates are refused rather than replaced. */
export function utf8(text: string, what: string): Uint8Array<ArrayBuffer> {
  if (!text.isWellFormed()) {
    throw new InvalidArgument(`${what} has a lone surrogate, which UTF-8 cannot hold.`);
  }
  return new TextEncoder().encode(text);
}

/** A size or offset in bytes as the ABI takes it. Throws `InvalidArgument` unless it is a whole number from 0 to 2^53 - 1. */
export function size(value: number, what: string): bigint {
  if (!Number.isSafeInteger(value) || value < 0) {
    throw new InvalidArgument(`${what} is ${value}; it must be a whole number of bytes from 0 on.`);
  }
  return BigInt(value);
}

/** Calls a function that returns text by (text, cap, length), with as much room as it asks for. */
export function readText(
  call: (
    text: Uint8Array<ArrayBuffer>,
    capacity: bigint,
    length: BigUint64Array<ArrayBuffer>,
    error: Uint8Array<ArrayBuffer>,
    errorCapacity: bigint,
  ) => number,
): string {
  const length = new BigUint64Array(1);
  for (let capacity = 4096;;) {
    const text = new Uint8Array(capacity);
    const error = new ErrorText();
    const status = call(text, BigInt(capacity), length, error.bytes, error.capacity);
    const needed = Number(length[0]) + 1; // the terminator
    if (status === 1 && needed > capacity) {
      capacity = needed;
      continue;
    }
    error.unwrap(status);
    return new TextDecoder().decode(text.subarray(0, Number(length[0])));
  }
}
