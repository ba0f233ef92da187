/** Predictions beside what was measured: the H200's figures in bench/RESULTS.md. */
import { assert } from "@std/assert";
import { configOf, shapes } from "../../bench/synthetic.ts";
import { parseConfig } from "../../src/checkpoint/config.ts";
import { explainPlan } from "../../src/schedule/explain.ts";

/** Model shape, rows, tokens in the cache with them, device milliseconds of the forward, whether on matrix units. */
const MEASURED: readonly [string, number, number, number, boolean?][] = [
  ["e2b", 1, 128, 1.479],
  ["e2b", 1, 8192, 1.712],
  ["e4b", 1, 128, 2.192],
  ["e4b", 1, 1024, 2.422],
  ["e4b", 1, 8192, 2.495],
  ["e4b", 4, 128, 4.682],
  ["e4b", 8, 128, 7.405],
  ["e4b", 16, 128, 12.163],
  ["e4b", 512, 512, 23.231],
  ["e4b", 1, 128, 2.58, true],
  ["e4b", 1, 8192, 2.905, true],
  ["e4b", 2, 128, 2.81, true],
  ["e4b", 4, 128, 2.969, true],
  ["e4b", 8, 128, 3.147, true],
  ["e4b", 16, 128, 3.897, true],
  ["12b", 1, 128, 3.883],
  ["12b", 1, 8192, 4.81],
  ["26b-a4b", 1, 128, 2.77],
  ["26b-a4b", 1, 8192, 3.342],
  ["26b-standard", 1, 128, 3.911],
  ["31b", 1, 128, 8.461],
  ["31b", 1, 8192, 9.778],
];

Deno.test("the H200's figures predict what was measured there within 30 percent", () => {
  for (const [name, rows, context, milliseconds, matrixUnits = false] of MEASURED) {
    const config = parseConfig(configOf(shapes[name]));
    const { totals } = explainPlan(config, { device: "H200", rows, context: context - rows, matrixUnits });
    const ratio = totals.seconds * 1e3 / milliseconds;
    assert(
      ratio > 0.7 && ratio < 1.3,
      `${name}, ${rows} rows at ${context}${matrixUnits ? " on matrix units" : ""}: predicted ${
        (totals.seconds * 1e3).toFixed(2)
      } ms, measured ${milliseconds}`,
    );
  }
});
