import { assert, assertEquals, assertStringIncludes, assertThrows } from "@std/assert";
import { type Comparison, describe, emptyRecord, joined } from "../../bench/peers/record.ts";

/** A part in which each peer was timed once. */
function part(threads: number, decode: Record<string, number>, prompt = 512): Comparison {
  const peers = Object.fromEntries(
    Object.entries(decode).map(([name, rate]) => [
      name,
      { ...emptyRecord(prompt, 32), decode: [rate], load: [1], resident: [2e6], residentFiles: [1e6] },
    ]),
  );
  return { title: "t", threads, bandwidth: [[10, 11]], dates: ["2026-01-01"], peers };
}

Deno.test("parts of one comparison add up, and the ratio is that of the medians", () => {
  let whole = part(2, { markbase: 10, peer: 8 });
  for (const rates of [{ markbase: 30, peer: 8 }, { markbase: 20, peer: 10 }]) {
    whole = joined(whole, part(2, rates));
  }
  assertEquals(whole.peers.markbase.decode, [10, 30, 20]);
  assertEquals([whole.bandwidth.length, whole.dates.length], [3, 3]);
  const text = describe(whole);
  assertStringIncludes(text, "markbase / peer: prefill –, decode 2.50, resident 1.00");
  assertStringIncludes(text, "decode(32)   20.0 (10.0–30.0) tokens/s");
});

Deno.test("parts of other threads or other numbers of tokens are no parts of one comparison", () => {
  const before = part(2, { markbase: 10 });
  assertThrows(() => joined(before, part(1, { markbase: 10 })), RangeError, "2 threads, this one with 1");
  assertThrows(() => joined(before, part(2, { markbase: 10 }, 64)), RangeError, "512 and 32 tokens");
  assert(joined(before, part(2, { other: 5 })).peers.other.decode[0] === 5);
});
