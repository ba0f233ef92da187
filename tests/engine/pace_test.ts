import { assert, assertEquals } from "@std/assert";
import { Pace } from "../../src/engine/pace.ts";

const OPTIONS = { chunkRows: 512, chunkSeconds: 0.25, leastChunkRows: 256 };

Deno.test("before anything was timed a chunk alone is whole, and one beside streams is small", () => {
  const pace = new Pace(OPTIONS);
  assertEquals([pace.rows(false), pace.rows(true)], [512, 64]);
});

Deno.test("chunks beside streams fit the time that their decode rows leave, alone they keep a least size", () => {
  const pace = new Pace(OPTIONS);
  pace.note(0, 8, 0.05);
  pace.note(500, 0, 1); // 2 ms a row
  assertEquals(pace.rows(true), 96); // (250 - 50) ms, in steps of 16 rows
  assertEquals(pace.rows(false), 256);
  pace.note(96, 8, 0.05 + 96 * 0.002); // a mixed forward tells the same
  assertEquals(pace.rows(true), 96);
});

Deno.test("a device that is slower than the set time still gets on with prompts", () => {
  const pace = new Pace(OPTIONS);
  pace.note(0, 1, 3);
  pace.note(512, 0, 512);
  assertEquals(pace.rows(true), 16);
});

Deno.test("after a chunk that the device gave up on no later one is longer than its half", () => {
  const pace = new Pace(OPTIONS);
  assertEquals(pace.halve(300), 150);
  assertEquals([pace.rows(false), pace.rows(true)], [150, 64]);
  for (let i = 0; i < 5; i++) pace.note(150, 0, 0.001);
  assert(pace.rows(false) <= 150);
});
