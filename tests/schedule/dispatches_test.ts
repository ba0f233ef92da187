import { assertEquals } from "@std/assert";
import { linearProblem } from "../../src/conformance/cases/linear.ts";
import { dispatchesOf } from "../../src/schedule/dispatches.ts";

Deno.test("whether codes are copied, not the size of its memory, says what a GPU's threadgroup has room for", () => {
  const KIB = 1024;
  // Four rows of 2,560 columns are 40 spans of 64 columns: 40 · (64 · 4 + 8) · 4 = 42,240 bytes. Beside them each of 16
  // simdgroups has 8 rows of sums, twice 8 · 4 · 4 bytes, 512 bytes for matrices that go through memory and 32 for norms: 12,800
  // bytes, and 64. With copies of codes it has for three times 8 rows of sums 4 · 4 bytes each, and two steps of four spans: at
  // 8 bits 2 · 256 bytes a row, in all 203,264, and 64; at 4 bits 104,960, and 64. 72 rows are 9 sets of 8 or 3 of 24: one core
  // has 72 either way, and one of three 24; of nine cores one has 8 or 24, so that sets stay small, a third as large.
  const table: [bits: 4 | 8, kib: number, copiesCodes: boolean, cores: number, dispatches: number][] = [
    [8, 227, false, 1, 1],
    [8, 227, true, 1, 2],
    [8, 227, true, 3, 2],
    [8, 227, true, 9, 1],
    [8, 241, true, 1, 1],
    [4, 227, true, 1, 1],
    [4, 144, true, 1, 1],
    [4, 143, true, 1, 2],
    [4, 54, false, 1, 1],
    [4, 53, false, 1, 2],
    [8, 32, false, 1, 2],
  ];
  for (const [bits, kib, copiesCodes, cores, expected] of table) {
    const format = { kind: "affine", bits, group: 64, scales: "bf16" } as const;
    const { plan } = linearProblem({ rows: 4, k: 2560, n: [72], format, preNorm: true }, 3, false);
    const shape = { rows: 4, outRows: 4, context: 0 };
    const counted = dispatchesOf(plan.ops[0], shape, { threadgroupBytes: kib * KIB, copiesCodes, cores });
    assertEquals(counted, expected, `${bits} bits, ${kib} KiB, copies ${copiesCodes}, ${cores} cores`);
  }
});
