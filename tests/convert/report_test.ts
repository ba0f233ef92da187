import { assertStringIncludes } from "@std/assert";
import type { Quantized } from "../../src/convert/quantize.ts";
import { reportText } from "../../src/convert/report.ts";

function report(recipe: string): string {
  const result: Quantized = {
    folder: "small",
    recipe,
    sourceBytes: 2e9,
    bytes: 1e9,
    bitsPerWeight: 4.5,
    searched: false,
    divergence: null,
    measuredOn: null,
    notes: [],
  };
  return reportText(result, "org/name", { bits: 4, groupSize: 64 });
}

Deno.test("the report tells the bits of all modules, or the recipe that decides, or both", () => {
  assertStringIncludes(report("uniform"), "| MLX affine, 4 bits, groups of 64 |");
  assertStringIncludes(report("mixed_3_6"), "| MLX affine, recipe mixed_3_6, groups of 64 |");
  assertStringIncludes(report("own.json"), "| MLX affine, 4 bits, recipe own.json, groups of 64 |");
});
