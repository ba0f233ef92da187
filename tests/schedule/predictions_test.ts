/** Predictions beside what was measured: the H200's figures in bench/RESULTS.md. */
import { assert } from "@std/assert";
import { configOf, shapes } from "../../bench/synthetic.ts";
import { parseConfig } from "../../src/checkpoint/config.ts";
import { explainPlan } from "../../src/schedule/explain.ts";

/** Model shape, rows, tokens in the cache with them, device milliseconds of the forward, whether on matrix units. */
const MEASURED: readonly [string, number, number, number, boolean?][] = [
  ["e2b", 1, 128, 1.301],
  ["e2b", 1, 8192, 1.495],
  ["e4b", 1, 128, 1.88],
  ["e4b", 1, 1024, 2.051],
  ["e4b", 1, 8192, 2.094],
  ["e4b", 4, 128, 4.395],
  ["e4b", 8, 128, 7.005],
  ["e4b", 16, 128, 11.529],
  ["e4b", 512, 512, 19.778],
  ["e4b", 1, 128, 2.324, true],
  ["e4b", 1, 8192, 2.539, true],
  ["e4b", 2, 128, 2.597, true],
  ["e4b", 4, 128, 2.72, true],
  ["e4b", 8, 128, 2.895, true],
  ["e4b", 16, 128, 3.533, true],
  ["26b-a4b", 1, 128, 2.159],
  ["26b-a4b", 1, 8192, 2.569],
  ["31b", 1, 128, 7.032],
  ["31b", 1, 8192, 8.147],
];

Deno.test("the H200's figures predict what was measured there within 20 percent", () => {
  for (const [name, rows, context, milliseconds, matrixUnits = false] of MEASURED) {
    const config = parseConfig(configOf(shapes[name]));
    const { totals } = explainPlan(config, { device: "H200", rows, context: context - rows, matrixUnits });
    const ratio = totals.seconds * 1e3 / milliseconds;
    assert(
      ratio > 0.8 && ratio < 1.2,
      `${name}, ${rows} rows at ${context}${matrixUnits ? " on matrix units" : ""}: predicted ${
        (totals.seconds * 1e3).toFixed(2)
      } ms, measured ${milliseconds}`,
    );
  }
});
