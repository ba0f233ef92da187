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

Deno.test("a page that only the cache keeps counts as available and is evicted when one is needed", () => {
  const pool = new PagePool("full", 2, 1);
  const [a, b] = [pool.allocate(false), pool.allocate(false)];
  pool.keep(a);
  pool.release(a);
  assertEquals([pool.free, pool.available], [0, 1]);
  pool.evict = () => (pool.unkeep(a), true);
  pool.reserve(1);
  assertThrows(() => pool.allocate(false), MemoryLimit);
  assertEquals(pool.allocate(true), a);
  pool.release(b);
  assertThrows(() => pool.keep(b), RangeError);
  assertEquals(pool.free, 1);
});

Deno.test("a kept page that a sequence takes again is no longer available", () => {
  const pool = new PagePool("full", 2, 1);
  const page = pool.allocate(false);
  pool.keep(page);
  pool.release(page);
  pool.retain(page);
  assertEquals([pool.available, pool.owners(page)], [1, 1]);
  pool.unkeep(page);
  pool.release(page);
  assertEquals([pool.free, pool.available], [2, 2]);
});
