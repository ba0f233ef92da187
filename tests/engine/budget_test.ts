/** The division of memory before a load. */
import { assert, assertEquals, assertThrows } from "@std/assert";
import { MemoryLimit } from "../../mod.ts";
import { readConfig } from "../../src/checkpoint/open.ts";
import { type BudgetRequest, planBudget } from "../../src/engine/budget.ts";
import { TINY } from "../support/models.ts";

const { config } = await readConfig(TINY);
const BESIDE = 5_000_000;
const UNSURE = 3_000_000;

function request(memory: number, contextLength?: number): BudgetRequest {
  return {
    config,
    kvFormat: "f16",
    weightBytes: BESIDE,
    activationBytes: 0,
    towerBytes: 0,
    unsureBytes: UNSURE,
    contextLength,
    memory,
    chunkRows: 256,
    maxBufferBytes: 2 ** 40,
  };
}

/** Bytes of a cache for one sequence of this many tokens. */
function oneOf(contextLength: number): number {
  const error = assertThrows(() => planBudget(request(1, contextLength)), MemoryLimit);
  return error.neededBytes - BESIDE;
}

Deno.test("a context that nobody named leaves free what the compiled plans may turn out to need", () => {
  const whole = oneOf(2048);
  assert(oneOf(1024) < whole);
  const contextOf = (memory: number) => planBudget(request(memory)).contextLength;
  assertEquals(contextOf(BESIDE + whole + UNSURE), 2048);
  assertEquals(contextOf(BESIDE + whole + UNSURE - 1), 1024);
  // The least there is need not: the compiled plans tell.
  assertEquals(contextOf(BESIDE + oneOf(256)), 256);
  assertThrows(() => contextOf(BESIDE + oneOf(256) - 1), MemoryLimit);
});

Deno.test("a context that was named needs no more than itself; sequences after the first leave that free too", () => {
  const one = oneOf(512);
  const sequencesAt = (memory: number) => {
    const { contextLength, kvBytes } = planBudget(request(memory, 512));
    assertEquals(contextLength, 512);
    return kvBytes / one;
  };
  assertThrows(() => sequencesAt(BESIDE + one - 1), MemoryLimit);
  assertEquals(sequencesAt(BESIDE + one), 1);
  assertEquals(sequencesAt(BESIDE + 2 * one + UNSURE - 1), 1);
  assertEquals(sequencesAt(BESIDE + 2 * one + UNSURE), 2);
  assertEquals(sequencesAt(BESIDE + 40 * one + UNSURE), 16);
});
