import { assert, assertEquals, assertNotEquals } from "@std/assert";
import { gumbel, randomSeed } from "../../src/sample/noise.ts";

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

Deno.test("a random seed is a whole number that JSON keeps", () => {
  for (let i = 0; i < 100; i++) assert(Number.isSafeInteger(randomSeed()));
  assertNotEquals(randomSeed(), randomSeed());
});
