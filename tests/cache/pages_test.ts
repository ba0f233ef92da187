import { assertEquals, assertThrows } from "@std/assert";
import { PagePool } from "../../src/cache/pages.ts";
import { MemoryLimit } from "../../src/errors.ts";

Deno.test("a pool gives each page once and takes it back after its last owner", () => {
  const pool = new PagePool("full", 3, 100);
  const pages = [pool.allocate(false), pool.allocate(false), pool.allocate(false)];
  assertEquals([...pages].sort(), [0, 1, 2]);
  pool.retain(pages[1]);
  pool.release(pages[1]);
  assertEquals(pool.free, 0);
  pool.release(pages[1]);
  assertEquals(pool.free, 1);
  assertEquals(pool.allocate(false), pages[1]);
});

Deno.test("a full pool refuses with the bytes that are needed and there", () => {
  const pool = new PagePool("sliding", 4, 100);
  pool.allocate(false);
  const error = assertThrows(() => pool.reserve(5), MemoryLimit, "sliding");
  assertEquals([error.neededBytes, error.availableBytes], [500, 300]);
});

Deno.test("promised pages are kept for whom they were promised to", () => {
  const pool = new PagePool("full", 2, 1);
  pool.reserve(2);
  assertThrows(() => pool.allocate(false), MemoryLimit);
  pool.allocate(true);
  pool.unreserve(1);
  pool.allocate(false);
  assertThrows(() => pool.allocate(true), MemoryLimit);
});

Deno.test("releasing a free page is a programming error", () => {
  const pool = new PagePool("full", 1, 1);
  assertThrows(() => pool.release(0), RangeError);
});
