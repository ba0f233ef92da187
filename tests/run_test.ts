import { assertEquals } from "@std/assert";
import { failureReport, parseSummary } from "./run.ts";

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

Deno.test("what failed is told with its error, or by the last lines where the process ended", () => {
  const output = "good ... \x1b[32mok\x1b[0m (1ms)\nbad ... FAILED (1ms)\n\n\x1b[41m ERRORS \x1b[0m\n\n" +
    "bad => ./a_test.ts:2:6\nerror: Error: x is 3\n\n\x1b[41m FAILURES \x1b[0m\n\nbad => ./a_test.ts:2:6\n\n" +
    "\x1b[31mFAILED\x1b[0m | 1 passed | 1 failed (9ms)\n";
  assertEquals(failureReport(output), "bad => ./a_test.ts:2:6\nerror: Error: x is 3");
  const lines = Array.from({ length: 100 }, (_, index) => `line ${index}`);
  assertEquals(failureReport(lines.join("\n")), lines.slice(-40).join("\n"));
});
