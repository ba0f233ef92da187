/** Candidates on a GPU beyond the conformance table: the number of dispatches, and vocabularies that need merges. */
import { assert, assertEquals } from "@std/assert";
import type { OutputRow } from "../../src/engine/input.ts";
import { type Case, F32 } from "../../src/conformance/case.ts";
import { ProblemBuilder } from "../../src/conformance/problem.ts";
import { Random } from "../../src/conformance/random.ts";
import { prepare, runCase } from "../../src/conformance/runner.ts";
import { openMetal } from "../metal/metal.ts";
import { buildSoftMetalLibrary } from "../softmetal/task.ts";
import { dispatches } from "./support.ts";

const library = await buildSoftMetalLibrary();

/** Rows of logits with many ties. */
function candidatesCase(vocabulary: number, rows: number): Case {
  return {
    op: "candidates",
    name: `V=${vocabulary} rows=${rows}`,
    tolerance: F32,
    build(exact) {
      const random = new Random(vocabulary + rows);
      const outputs = Array.from({ length: rows }, (_, row): OutputRow => ({
        row,
        temperature: Math.fround(0.5 + row / 64),
        adjustments: [{ id: row, multiply: 0.5, add: 9 }, { id: vocabulary - 1, multiply: 1, add: 8 }],
      }));
      const builder = new ProblemBuilder(random, outputs.map(({ row }) => ({ position: row })), {
        outputs,
        vocabulary,
      });
      const values = Float64Array.from({ length: rows * vocabulary }, () => random.integer(4001) / 256 - 12);
      return builder.finish({
        kind: "candidates",
        logits: builder.activation("logits", ["out_rows", vocabulary], values),
        ids: builder.output("ids", ["out_rows", 256], "u32"),
        values: builder.output("values", ["out_rows", 256]),
        stats: builder.output("stats", ["out_rows", 4]),
      }, exact);
    },
  };
}

Deno.test("candidates take two dispatches for each vocabulary of the family, three for larger ones", async () => {
  using device = await openMetal(library.path);
  for (const [vocabulary, expected] of [[1000, 2], [262144, 2], [262208, 2], [300000, 3]]) {
    const problem = candidatesCase(vocabulary, 1).build(true);
    assertEquals(await dispatches(device, problem), expected, `${vocabulary} tokens`);
  }
});

Deno.test("candidates of a vocabulary whose lists are merged twice, and of more rows than one round has", async () => {
  using device = await openMetal(library.path);
  for (const c of [candidatesCase(300000, 1), candidatesCase(9000, 66)]) {
    const { pass, error, reason } = await runCase(device, prepare(c), true);
    assert(pass, `${c.name}: error ${error}, ${reason}`);
  }
});
