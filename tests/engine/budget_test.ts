/** The division of memory before a load. */
import { assert, assertEquals, assertThrows } from "@std/assert";
import { MemoryLimit } from "../../mod.ts";
import { readConfig } from "../../src/checkpoint/open.ts";
import { type BudgetRequest, planBudget } from "../../src/engine/budget.ts";
import { TINY } from "../support/models.ts";

const { config } = await readConfig(TINY);
const BESIDE = 5_000_000;
const UNSURE = 3_000_000;
/** Pages of a sequence in the sliding layers, whose window is 64 tokens, with a chunk of 256 and a page of slack at each end. */
const SLIDING = (64 + 32 + 256) / 32 + 1 + 1;
/** 32 keys and values of f16, in either group. */
const PAGE_BYTES = 32_768;

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
  const one = oneOf(512), windows = SLIDING * PAGE_BYTES;
  const pagesAt = (memory: number) => {
    const { contextLength, kvPages, kvBytes } = planBudget(request(memory, 512));
    assertEquals(contextLength, 512);
    assertEquals(kvBytes, (kvPages[0] + kvPages[1]) * PAGE_BYTES);
    return kvPages;
  };
  const full = 512 / 32 + 1;
  assertEquals(one, (SLIDING + full) * PAGE_BYTES);
  assertThrows(() => pagesAt(BESIDE + one - 1), MemoryLimit);
  assertEquals(pagesAt(BESIDE + one), [SLIDING, full]);
  assertEquals(pagesAt(BESIDE + one + UNSURE + windows - 1), [SLIDING, full]);
  assertEquals(pagesAt(BESIDE + one + UNSURE + windows), [2 * SLIDING, full]);
  assertEquals(pagesAt(BESIDE + 2 * one + UNSURE - 1), [3 * SLIDING, full]);
  assertEquals(pagesAt(BESIDE + 2 * one + UNSURE), [2 * SLIDING, 2 * full]);
  assertEquals(pagesAt(BESIDE + 40 * one + UNSURE), [16 * SLIDING, 16 * full]);
});

Deno.test("where few sequences of a long context are provided for, shorter ones have windows all the same", () => {
  const full = 1e6 / 32 + 1;
  assertEquals(planBudget(request(1e12, 1e6)).kvPages, [16 * SLIDING, 2 * full]);
});
