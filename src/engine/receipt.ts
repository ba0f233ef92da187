/** Fingerprint of a checkpoint's weights: cheap enough for every load, and honest about what it looked at. */
import { sha256 } from "../../dylib/sources.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import { openFile, readInto } from "../checkpoint/files.ts";

/** Files of at most this many bytes together are hashed whole. */
const WHOLE_BYTES = 16 * 2 ** 20;
const SAMPLE_BYTES = 4096;
const SAMPLES = 64;

/**
 * `sha256:` of all bytes of the weight files where they are small; else `sampled-sha256:` of each file's size, its first
 * 64 KiB (header), and 64 samples of 4 KiB spread evenly over it. The latter finds another model or revision, not a single
 * changed byte. Both cover `config.json`.
 */
export async function weightsFingerprint(checkpoint: Checkpoint): Promise<string> {
  const total = checkpoint.files.reduce((sum, file) => sum + file.size, 0);
  const whole = total <= WHOLE_BYTES;
  const head = new TextEncoder().encode(JSON.stringify(checkpoint.rawConfig));
  const parts = checkpoint.files.map(({ path, size }) => ({
    path,
    text: new TextEncoder().encode(`\n${size}\n`),
    ranges: whole ? [{ offset: 0, length: size }] : samplesOf(size),
  }));
  // One piece of memory, filled in place.
  const bytes = new Uint8Array(
    parts.reduce(
      (sum, { text, ranges }) => ranges.reduce((sum, { length }) => sum + length, sum + text.length),
      head.length,
    ),
  );
  bytes.set(head);
  let at = head.length;
  for (const { path, text, ranges } of parts) {
    bytes.set(text, at);
    at += text.length;
    using file = await openFile(null, path);
    for (const { offset, length } of ranges) {
      await readInto(file, offset, bytes.subarray(at, at += length));
    }
  }
  const hex = await sha256(bytes);
  bytes.buffer.transfer(0); // megabytes that a collector would leave where they are for long
  return `${whole ? "sha256" : "sampled-sha256"}:${hex}`;
}

/** The samples of a file of `size` bytes. */
function samplesOf(size: number): { offset: number; length: number }[] {
  const ranges = [{ offset: 0, length: Math.min(size, 16 * SAMPLE_BYTES) }];
  for (let i = 1; i <= SAMPLES; i++) {
    const offset = Math.floor((size - SAMPLE_BYTES) * i / SAMPLES);
    if (offset > 0) ranges.push({ offset, length: SAMPLE_BYTES });
  }
  return ranges;
}
