/** Weights of keys far below the largest score, on every instruction set of this CPU. */
import { assert } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { ProblemBuilder } from "../../src/conformance/problem.ts";
import { Random } from "../../src/conformance/random.ts";
import { execute } from "../../src/conformance/runner.ts";
import { lackingLevels, LEVELS } from "./levels.ts";

const lacking = await lackingLevels();
const KEYS = 600, D = 64, HEADS = 4;

/** What heads give of `KEYS` keys whose scores are all `below` the one of the key at 300; its value is `top`, that of the others 1. */
async function attended(device: Device, below: number, top: number, exact: boolean, decode: boolean) {
  const pages = Math.ceil(KEYS / 32);
  const values = new Float64Array(pages * 2 * 32 * D).fill(NaN);
  for (let key = 0; key < KEYS; key++) {
    const at = (Math.floor(key / 32) * 2 * 32 + key % 32) * D;
    values.fill(0, at, at + D);
    values[at] = key === 300 ? 0 : -below;
    values.fill(key === 300 ? top : 1, at + 32 * D, at + 33 * D);
  }
  const builder = new ProblemBuilder(
    new Random(1),
    [{ position: KEYS - 1, rowClass: decode ? "decode" : "prefill" }],
    { sequences: [{ first: 0, pages: Array.from({ length: pages }, (_, i) => i) }] },
  );
  const tensor = builder.pages("pages", [pages, 2, 1, 32, D], "f16", values);
  const query = Float64Array.from({ length: HEADS * D }, (_, i) => i % D === 0 ? 1 : 0);
  const problem = builder.finish({
    kind: "attend",
    q: builder.activation("q", ["rows", HEADS * D], query),
    y: builder.output("y", ["rows", HEADS * D]),
    kv: { pages: tensor, layer: 0, group: 0 },
    ...{ heads: HEADS, kvHeads: 1, headDim: D, window: null, scoreScale: 1 },
  }, exact);
  return new Float32Array((await execute(device, problem, exact)).at(-1)!.buffer);
}

for (const level of LEVELS) {
  Deno.test({
    name: `keys far below the largest score weigh what they should, down to nothing, on cpu ${level}`,
    ignore: lacking.has(level),
    async fn() {
      using device = await Device.open("cpu", { level, threads: 2 });
      // A floor of the exponential at 1e-38 gave 7e-36 at 100, and its subnormal sums took a CPU five times as long.
      for (const below of [4, 20, 60, 68, 70, 87, 100, 1000]) {
        const expected = (KEYS - 1) * Math.exp(-below) / (1 + (KEYS - 1) * Math.exp(-below));
        for (const exact of [true, false]) {
          for (const decode of [true, false]) {
            const found = await attended(device, below, 0, exact, decode);
            // Beyond 69 a weight is less than f32 can tell beside the largest, and 0.
            const error = below < 69 ? 2e-5 * expected : expected;
            assert(
              found.every((x) => Math.abs(x - expected) <= error),
              `${below} below: ${found[0]} instead of ${expected}`,
            );
            const kept = await attended(device, below, 1, exact, decode);
            assert(kept.every((x) => Math.abs(x - 1) < 1e-6), `${below} below: ${kept[0]} instead of 1`);
          }
        }
      }
    },
  });
}
