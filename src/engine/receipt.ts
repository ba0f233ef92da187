/** Fingerprint of a checkpoint's weights: cheap enough for every load, and honest about what it looked at. */
import { sha256 } from "../../dylib/sources.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import { openFile, readRange } from "../checkpoint/files.ts";

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
  const parts: Uint8Array[] = [new TextEncoder().encode(JSON.stringify(checkpoint.rawConfig))];
  for (const { path, size } of checkpoint.files) {
    using file = await openFile(null, path);
    parts.push(new TextEncoder().encode(`\n${size}\n`));
    if (whole) {
      parts.push(await readRange(file, 0, size));
      continue;
    }
    parts.push(await readRange(file, 0, Math.min(size, 16 * SAMPLE_BYTES)));
    for (let i = 1; i <= SAMPLES; i++) {
      const offset = Math.floor((size - SAMPLE_BYTES) * i / SAMPLES);
      if (offset > 0) parts.push(await readRange(file, offset, SAMPLE_BYTES));
    }
  }
  const hex = await sha256(new Uint8Array(await new Blob(parts as BlobPart[]).arrayBuffer()));
  return `${whole ? "sha256" : "sampled-sha256"}:${hex}`;
}
