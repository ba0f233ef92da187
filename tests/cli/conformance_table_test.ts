import { assert, assertEquals, assertStringIncludes } from "@std/assert";
import { describeSummary, summarise } from "../../src/cli/conformance_table.ts";
import type { CheckedRow } from "../../src/conformance/check.ts";

const row = (part: Partial<CheckedRow>): CheckedRow => ({
  op: "linear",
  case: "a",
  precision: "exact",
  error: 1e-7,
  tolerance: 1e-5,
  pass: true,
  variants: [],
  ...part,
});

Deno.test("an op shows the case that is nearest to its bound, not the largest error", () => {
  const { ops, failures } = summarise([
    row({}),
    row({ case: "half", error: 1e-4, tolerance: 4e-3 }),
    row({ case: "close", error: 9e-6 }),
    row({ precision: "fast", error: 2e-3, tolerance: 1e-2 }),
    row({ op: "gather", error: 0 }),
  ]);
  assertEquals(failures, []);
  assertEquals(ops, [
    {
      op: "linear",
      cases: 3,
      failed: 0,
      exact: { case: "close", error: 9e-6, tolerance: 1e-5 },
      fast: { case: "a", error: 2e-3, tolerance: 1e-2 },
    },
    { op: "gather", cases: 1, failed: 0, exact: { case: "a", error: 0, tolerance: 1e-5 } },
  ]);
});

Deno.test("a failed row is counted, told in a sentence, and a missing number is no zero", () => {
  const summary = summarise([
    row({ case: "good" }),
    row({ case: "bad", error: Infinity, pass: false, kernel: "matvec_bf16" }),
    row({ case: "far", precision: "fast", error: 0.5, tolerance: 1e-2, pass: false }),
  ]);
  assertEquals(summary.ops[0].failed, 2);
  assertEquals(summary.ops[0].exact, { case: "bad", error: null, tolerance: 1e-5 });
  const text = describeSummary(summary);
  assertStringIncludes(text, "no number");
  assertStringIncludes(text, "2 failed");
  assertStringIncludes(text, 'The op linear (kernel matvec_bf16) is wrong in the case "bad" in exact mode');
  assertStringIncludes(text, "its error is 5.0e-1 where 0.01 is allowed");
  assert(!describeSummary(summary, 1).includes('"far"'));
  assertStringIncludes(describeSummary(summary, 1), "and 1 more failures");
});
