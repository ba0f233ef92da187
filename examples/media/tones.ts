/** Synthesises the sounds that the shipped model has names for, at 16 kHz. */
import { between, type Random } from "./draw.ts";

/** Samples per second. */
export const RATE = 16_000;

/** Names as the model writes them. */
export const TONES = [
  "a rising tone",
  "a falling tone",
  "a high tone",
  "a low tone",
  "one beep",
  "two beeps",
  "three beeps",
  "noise",
  "silence",
] as const;

/** A name of a sound. */
export type Tone = typeof TONES[number];

/** Samples from −1 to 1. */
export function synthesise(tone: Tone, next: Random): Float32Array {
  const length = Math.floor(RATE * between(next, 0.8, 1.4));
  const level = between(next, 0.2, 0.5);
  if (tone === "silence") return new Float32Array(length);
  if (tone === "noise") return Float32Array.from({ length }, () => level / 3 * gaussian(next));
  if (tone.endsWith("tone")) return sweep(tone, length, level, next);
  return beeps(["one", "two", "three"].indexOf(tone.split(" ")[0]) + 1, level, next);
}

function sweep(tone: Tone, length: number, level: number, next: Random): Float32Array {
  const high = between(next, 1300, 2400), low = between(next, 140, 330);
  const from = tone === "a high tone" ? high : tone === "a falling tone" ? between(next, 1200, 2300) : low;
  const to = tone === "a rising tone"
    ? between(next, 1200, 2300)
    : tone === "a falling tone"
    ? between(next, 220, 450)
    : from;
  const start = tone === "a rising tone" ? between(next, 220, 450) : from;
  const overtone = between(next, 0, 0.3);
  let phase = 0;
  return Float32Array.from({ length }, (_, i) => {
    phase += 2 * Math.PI * start * (to / start) ** (i / length) / RATE;
    const edge = Math.min(1, Math.min(i, length - 1 - i) / (0.03 * RATE));
    return level * edge * (Math.sin(phase) + overtone * Math.sin(2 * phase));
  });
}

function beeps(count: number, level: number, next: Random): Float32Array {
  const hertz = between(next, 600, 1400);
  const on = Math.floor(RATE * between(next, 0.1, 0.17)), off = Math.floor(RATE * between(next, 0.13, 0.23));
  const samples = new Float32Array(count * (on + off) + Math.floor(0.1 * RATE));
  for (let beep = 0; beep < count; beep++) {
    for (let i = 0; i < on; i++) {
      const edge = Math.min(1, Math.min(i, on - 1 - i) / (0.01 * RATE));
      samples[beep * (on + off) + i] = level * edge * Math.sin(2 * Math.PI * hertz * i / RATE);
    }
  }
  return samples;
}

function gaussian(next: Random): number {
  return Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
}
