/** Fills buffers with random numbers, from one pool of them so that gigabytes take seconds. */
import type { Buffer } from "../../ffi/buffer.ts";
import { GGUF_BLOCKS, type GgufType } from "../../src/checkpoint/gguf_types.ts";
import { fillBlocks } from "../../src/conformance/blocks.ts";
import { Random } from "../../src/conformance/random.ts";

const POOL_VALUES = 1 << 20;

/** Random bytes: codes of quantised weights. */
export function fill(buffer: Buffer, offset: number, bytes: number): void {
  repeat(buffer, offset, bytes, new Uint8Array(bits().buffer));
}

/** Blocks of GGUF with weights of about 1/50, from a pool of whole blocks. */
export function blocks(buffer: Buffer, offset: number, bytes: number, type: GgufType): void {
  let pool = pools.get(type);
  if (!pool) {
    pools.set(type, pool = new Uint8Array(GGUF_BLOCKS[type].bytes * 2048));
    fillBlocks(type, pool, 0.02, new Random(1));
  }
  repeat(buffer, offset, bytes, pool);
}

/** Scale bytes near 1/64 in either form. */
export function scaleBytes(buffer: Buffer, offset: number, bytes: number, group: number): void {
  repeat(buffer, offset, bytes, new Uint8Array(4096).fill(group === 16 ? 8 : 121));
}

const pools = new Map<string, Uint8Array<ArrayBuffer>>();

/** Numbers around a mean, even between mean ± √3 deviations. */
export function normals(
  buffer: Buffer,
  offset: number,
  bytes: number,
  kind: string,
  [mean, deviation]: [number, number],
): void {
  const key = `${kind} ${mean} ${deviation}`;
  let pool = pools.get(key);
  if (!pool) {
    const values = Float32Array.from(
      bits(),
      (word) => mean + deviation * Math.sqrt(12) * (word / 2 ** 32 - 0.5),
    );
    pools.set(key, pool = stored(values, kind));
  }
  repeat(buffer, offset, bytes, pool);
}

function stored(values: Float32Array<ArrayBuffer>, kind: string): Uint8Array<ArrayBuffer> {
  if (kind === "f16") return new Uint8Array(Float16Array.from(values).buffer);
  if (kind === "bf16") {
    const words = new Uint32Array(values.buffer);
    return new Uint8Array(Uint16Array.from(words, (word) => word >>> 16).buffer);
  }
  return new Uint8Array(values.buffer);
}

let random: Uint32Array<ArrayBuffer> | undefined;

function bits(): Uint32Array<ArrayBuffer> {
  if (random) return random;
  random = new Uint32Array(POOL_VALUES);
  let state = 0x2545f491;
  for (let i = 0; i < random.length; i++) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    random[i] = state;
  }
  return random;
}

function repeat(buffer: Buffer, offset: number, bytes: number, pool: Uint8Array<ArrayBuffer>): void {
  for (let at = 0; at < bytes; at += pool.length) {
    buffer.write(offset + at, pool.subarray(0, Math.min(pool.length, bytes - at)));
  }
}
