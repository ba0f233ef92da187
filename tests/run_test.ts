import { assertEquals } from "@std/assert";
import { parseSummary } from "./run.ts";

Deno.test("the summary line is read with steps, ignored tests and colours", () => {
  assertEquals(
    parseSummary("\x1b[32mok\x1b[0m | 12 passed (3 steps) | 0 failed | 2 ignored (1 step) (123ms)\n"),
    { passed: 12, failed: 0, skipped: 2 },
  );
  assertEquals(parseSummary("FAILED | 1 passed | 4 failed (2 steps) (1s)\n"), {
    passed: 1,
    failed: 4,
    skipped: 0,
  });
});

Deno.test("output without a summary is not taken for success", () => {
  assertEquals(parseSummary("error: Type checking failed.\n"), null);
  assertEquals(parseSummary(""), null);
});
