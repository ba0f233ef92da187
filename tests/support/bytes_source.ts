/** Bytes in memory as what the readers of checkpoints read from. */
import type { ByteSource } from "../../src/checkpoint/byte_source.ts";

/** A source of these bytes. */
export function bytesSource(bytes: Uint8Array): ByteSource {
  return { size: bytes.length, read: (offset, length) => bytes.subarray(offset, offset + length) };
}
