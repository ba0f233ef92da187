/** Keys and values beyond the range of halves, for any device. */
import { assert } from "@std/assert";
import type { Device } from "../../ffi/device.ts";
import { ProblemBuilder } from "../../src/conformance/problem.ts";
import { Random } from "../../src/conformance/random.ts";
import { execute } from "../../src/conformance/runner.ts";

const HALF = (x: number) => Math.max(-65504, Math.min(65504, x));

/**
 * Throws unless one token's values, which no norm has made small, come back from caches of every kind: as they are, of codes to half
 * a step, of halves at most the largest. `halves`: the device multiplies prompts in halves in fast mode, where no cache gives more.
 */
export async function checkRawValues(device: Device, halves: boolean): Promise<void> {
  const d = 64;
  const value = Float64Array.from({ length: d }, (_, i) => [7e4, -1e5, 65504, 1e30, -3, 0][i % 6]);
  const raw = value.map((x) => Math.abs(x) > 1e20 ? 7e4 : x); // what codes can tell apart
  for (
    const [kv, v, stored] of [
      ["f32", value, (x: number) => x],
      ["f16", value, HALF],
      ["q8", raw, (x: number) => Math.round(127 * x / 1e5) * 1e5 / 127],
    ] as const
  ) {
    for (const rowClass of ["decode", "prefill"] as const) {
      for (const exact of [true, false]) {
        const rows = [{ position: 0, rowClass }];
        const builder = new ProblemBuilder(new Random(4), rows, { sequences: [{ first: 0, pages: [0] }] });
        const keys = Float64Array.from({ length: d }, (_, i) => i % 2 === 0 ? 7e4 : -2e5);
        const qkv = builder.activation("qkv", ["rows", 3 * d], Float64Array.of(...keys, ...keys, ...v));
        const pages = builder.pages("pages", [1, 2, 1, 32, d], kv, new Float64Array(2 * 32 * d).fill(NaN));
        const y = builder.output("y", ["rows", d]);
        const problem = builder.finish({
          kind: "attention",
          qkv,
          y,
          qNorm: builder.vector("q_norm", d, "bf16", 1, 0.1),
          kNorm: builder.vector("k_norm", d, "bf16", 1, 0.1),
          kv: { pages, layer: 0, group: 0 },
          ...{ heads: 1, kvHeads: 1, headDim: d, window: null, ownsKv: true },
          ...{ keysAreValues: false, normValues: false, eps: 1e-6, scoreScale: 1 },
          rope: { theta: 1e4, rotatedPairs: d / 2, positionScale: 1 },
        }, exact);
        const found = new Float32Array((await execute(device, problem, exact)).at(-1)!.buffer);
        const inHalves = halves && !exact && rowClass === "prefill";
        // A single key has all of the weight, so that the result is the value as the pages hold it.
        v.forEach((x, i) => {
          const exactly = stored(Math.fround(x));
          const expected = inHalves ? HALF(exactly) : exactly;
          assert(
            Math.abs(found[i] - expected) <= (inHalves ? 1e-3 : 1e-6) * Math.abs(expected),
            `${kv}, ${rowClass}, exact ${exact}: ${x} is ${found[i]} instead of ${expected}`,
          );
        });
      }
    }
  }
}
