import { assert, assertEquals, assertNotEquals } from "@std/assert";
import {
  eachReaching,
  gumbel,
  largestGumbel,
  mayReach,
  NOISE_BLOCK,
  randomSeed,
} from "../../src/sample/noise.ts";

Deno.test("noise depends on seed, position and token, high bits of the seed included, and on nothing else", () => {
  assertEquals(gumbel(7, 3, 11), gumbel(7, 3, 11));
  assertNotEquals(gumbel(7, 3, 11), gumbel(8, 3, 11));
  assertNotEquals(gumbel(7, 3, 11), gumbel(7, 4, 11));
  assertNotEquals(gumbel(7, 3, 11), gumbel(7, 3, 12));
  assertNotEquals(gumbel(7, 3, 11), gumbel(7 + 2 ** 32, 3, 11));
  assertNotEquals(gumbel(0, 0, 1), gumbel(0, 1, 0));
});

Deno.test("noise is distributed as a standard Gumbel variable along tokens, positions and seeds", () => {
  const draws: [string, (i: number) => number][] = [
    ["tokens", (i) => gumbel(5, 100, i)],
    ["positions", (i) => gumbel(5, i, 100)],
    ["seeds", (i) => gumbel(i, 5, 100)],
  ];
  for (const [name, draw] of draws) {
    const bins = new Float64Array(64);
    const count = 64_000;
    for (let i = 0; i < count; i++) bins[Math.min(63, Math.floor(64 * Math.exp(-Math.exp(-draw(i)))))]++;
    const chi2 = bins.reduce((sum, n) => sum + (n - count / 64) ** 2 / (count / 64), 0);
    assert(chi2 < 103.4, `${name}: chi-square ${chi2} with 63 degrees of freedom is beyond the 99.9% point`);
  }
});

Deno.test("noise along positions is as even for the first tokens and seeds as for others", () => {
  // Chi-squares of many tokens and seeds together, so that a little too much of each shows.
  const count = 16_000, tokens = [0, 1, 2, 16, 255, 256, 4096, 262_143], seeds = [0, 1, 5, 64, 2 ** 40];
  let sum = 0;
  for (const token of tokens) {
    for (const seed of seeds) {
      const bins = new Float64Array(64);
      for (let i = 0; i < count; i++) {
        bins[Math.min(63, Math.floor(64 * Math.exp(-Math.exp(-gumbel(seed, i, token)))))]++;
      }
      sum += bins.reduce((sum, n) => sum + (n - count / 64) ** 2 / (count / 64), 0);
    }
  }
  const freedom = 63 * tokens.length * seeds.length;
  const deviations = (sum - freedom) / Math.sqrt(2 * freedom);
  assert(Math.abs(deviations) < 3.3, `chi-squares are ${deviations} deviations from what they should be`);
});

Deno.test("noise of neighbouring tokens and positions is uncorrelated", () => {
  const count = 50_000;
  const uniform = (value: number) => Math.exp(-Math.exp(-value)) - 0.5;
  for (const [dp, dt] of [[0, 1], [1, 0], [1, 1], [1, -1]]) {
    let sum = 0;
    for (let i = 0; i < count; i++) {
      sum += uniform(gumbel(9, 50, 100 + i)) * uniform(gumbel(9, 50 + dp, 100 + i + dt));
    }
    const correlation = sum / count * 12;
    assert(Math.abs(correlation) < 4 / Math.sqrt(count), `offset ${dp}, ${dt}: ${correlation}`);
  }
});

Deno.test("the largest noise of a block is that of one of its tokens, at any place alike, and above all others", () => {
  const places = new Float64Array(16);
  const count = 4000;
  for (let position = 0; position < count; position++) {
    const block = position % 7;
    const noise = Array.from(
      { length: NOISE_BLOCK },
      (_, i) => gumbel(3, position, block * NOISE_BLOCK + i),
    );
    const largest = Math.max(...noise);
    assertEquals(largest, largestGumbel(3, position, block));
    assertEquals(noise.filter((value) => value === largest).length, 1);
    places[Math.floor(noise.indexOf(largest) / NOISE_BLOCK * 16)]++;
  }
  const chi2 = places.reduce((sum, n) => sum + (n - count / 16) ** 2 / (count / 16), 0);
  assert(chi2 < 37.7, `chi-square ${chi2} with 15 degrees of freedom is beyond the 99.9% point`);
});

Deno.test("the noise of a block's second largest token is distributed as that of independent tokens", () => {
  // The largest of those that do not have the block's largest noise, as a share of what its distribution gives.
  const n = NOISE_BLOCK, count = 8000, bins = new Float64Array(32);
  for (let position = 0; position < count; position++) {
    const sorted = Array.from({ length: n }, (_, i) => gumbel(11, position, i)).sort((a, b) => b - a);
    const p = Math.exp(-Math.exp(-sorted[1])); // of n uniform numbers, the second largest
    const below = n * p ** (n - 1) - (n - 1) * p ** n;
    bins[Math.min(31, Math.floor(32 * below))]++;
  }
  const chi2 = bins.reduce((sum, b) => sum + (b - count / 32) ** 2 / (count / 32), 0);
  assert(chi2 < 61.1, `chi-square ${chi2} with 31 degrees of freedom is beyond the 99.9% point`);
});

Deno.test("the noise of the second largest token of sixteen neighbours is distributed as that of independent ones", () => {
  const n = 16, count = 8000, bins = new Float64Array(32);
  for (let position = 0; position < count; position++) {
    const first = n * (position % 48); // the group of a block's largest among them
    const sorted = Array.from({ length: n }, (_, i) => gumbel(13, position, first + i)).sort((a, b) => b - a);
    const p = Math.exp(-Math.exp(-sorted[1])); // of n uniform numbers, the second largest
    const below = n * p ** (n - 1) - (n - 1) * p ** n;
    bins[Math.min(31, Math.floor(32 * below))]++;
  }
  const chi2 = bins.reduce((sum, b) => sum + (b - count / 32) ** 2 / (count / 32), 0);
  assert(chi2 < 61.1, `chi-square ${chi2} with 31 degrees of freedom is beyond the 99.9% point`);
});

Deno.test("no token whose noise reaches a value is missed, and few others are found", () => {
  const count = 64 * NOISE_BLOCK;
  for (const value of [-1, 0.5, 3, 6, 9, 12]) {
    for (let position = 0; position < 8; position++) {
      const found = new Set<number>();
      for (let block = 0; block < 64; block++) {
        eachReaching(21, position, block, Math.exp(-value), (token) => found.add(token));
      }
      let reaching = 0;
      for (let token = 0; token < count; token++) {
        const noise = gumbel(21, position, token);
        if (noise >= value) {
          reaching++;
          assert(found.has(token), `${token} at ${value}`);
          assert(
            mayReach(21, position, token, Math.exp(-noise)) &&
              mayReach(21, position, token, Math.exp(-value)),
          );
        }
        if (!mayReach(21, position, token, Math.exp(-value))) assert(noise < value);
      }
      if (value >= 3) {
        assert(found.size <= 1.1 * reaching + 3, `${found.size} found, ${reaching} reach ${value}`);
      }
    }
  }
});

Deno.test("a random seed is a whole number that JSON keeps", () => {
  for (let i = 0; i < 100; i++) assert(Number.isSafeInteger(randomSeed()));
  assertNotEquals(randomSeed(), randomSeed());
});
