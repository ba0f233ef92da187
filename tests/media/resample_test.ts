import { assert, assertEquals } from "@std/assert";
import { resample } from "../../src/media/resample.ts";

function tone(hertz: number, rate: number, seconds = 0.5): Float32Array {
  return Float32Array.from({ length: rate * seconds }, (_, i) => Math.sin(2 * Math.PI * hertz * i / rate));
}

/** Largest difference to a tone of the new rate, away from the ends. */
function error(samples: Float32Array, hertz: number, rate: number): number {
  let most = 0;
  for (let i = Math.floor(rate * 0.05); i < samples.length - rate * 0.05; i++) {
    most = Math.max(most, Math.abs(samples[i] - Math.sin(2 * Math.PI * hertz * i / rate)));
  }
  return most;
}

const decibels = (ratio: number) => 20 * Math.log10(ratio);

Deno.test("tones in the pass band keep level and phase within 0.003 dB, from every usual rate", async () => {
  for (const rate of [8000, 11_025, 22_050, 32_000, 44_100, 48_000, 64_000, 96_000, 192_000, 768_000]) {
    const edge = 0.9 * Math.min(rate, 16_000) / 2;
    for (const share of [0.01, 0.25, 0.5, 0.75, 1]) {
      const far = error(await resample(tone(share * edge, rate), rate, 16_000), share * edge, 16_000);
      assert(far < 3e-4, `${share * edge} Hz from ${rate} Hz: ${far}`);
    }
  }
});

Deno.test("tones that 16 kHz cannot hold are 80 dB down, so that nothing folds back", async () => {
  for (
    const [hertz, rate] of [
      [8000, 44_100],
      [8100, 48_000],
      [9000, 44_100],
      [12_000, 48_000],
      [15_999, 48_000],
      [22_000, 48_000],
      [40_000, 96_000],
      [24_500, 64_000],
      [47_000, 96_000],
      [95_000, 192_000],
      [180_000, 768_000],
      [390_000, 768_000],
    ]
  ) {
    const samples = (await resample(tone(hertz, rate), rate, 16_000)).subarray(800, -800);
    const level = decibels(samples.reduce((most, s) => Math.max(most, Math.abs(s)), 0));
    assert(level < -80, `${hertz} Hz at ${rate} Hz is only ${level.toFixed(1)} dB`);
  }
});

Deno.test("images of a slower sound are 80 dB down", async () => {
  // A 3 kHz tone at 8 kHz has an image at 5 kHz.
  const samples = (await resample(tone(3000, 8000), 8000, 16_000)).subarray(800, -800);
  let re = 0, im = 0;
  samples.forEach((s, i) => {
    re += s * Math.cos(2 * Math.PI * 5000 * i / 16_000);
    im += s * Math.sin(2 * Math.PI * 5000 * i / 16_000);
  });
  const level = decibels(2 * Math.hypot(re, im) / samples.length);
  assert(level < -80, `${level.toFixed(1)} dB`);
});

Deno.test("a constant stays constant and lengths follow the duration, at odd rates too", async () => {
  for (const rate of [8000, 11_025, 16_001, 22_050, 44_100, 44_101, 47_999, 64_001, 88_200, 767_999]) {
    const samples = await resample(new Float32Array(rate / 4).fill(0.5), rate, 16_000);
    assert(Math.abs(samples.length - 4000) <= 1, `${rate}: ${samples.length}`);
    assert(samples.subarray(200, 3800).every((s) => Math.abs(s - 0.5) < 1e-5), `${rate}`);
  }
});

Deno.test("the rate that is wanted gives a copy", async () => {
  const samples = tone(440, 16_000);
  const copy = await resample(samples, 16_000, 16_000);
  assertEquals(copy, samples);
  assert(copy.buffer !== samples.buffer);
});
