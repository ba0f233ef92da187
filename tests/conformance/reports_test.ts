/** Known faults of other implementations, each with its stated values, on every instruction set of this CPU. */
import { assert, assertAlmostEquals, assertEquals } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { PRODUCT, seedOf, type TableCase } from "../../src/conformance/case.ts";
import { type ExpertDescription, expertProblem } from "../../src/conformance/cases/experts.ts";
import { type LinearDescription, linearProblem } from "../../src/conformance/cases/linear.ts";
import { MAIN_FORMATS } from "../../src/conformance/case.ts";
import { checkRawValues } from "../support/raw_values.ts";
import { lackingLevels, LEVELS } from "./levels.ts";
import { type Problem, ProblemBuilder } from "../../src/conformance/problem.ts";
import { Random } from "../../src/conformance/random.ts";
import { execute, prepare, type Prepared, runCase } from "../../src/conformance/runner.ts";

const lacking = await lackingLevels();

function test(name: string, run: (device: Device) => Promise<void>) {
  for (const level of LEVELS) {
    Deno.test({
      name: `${name} on cpu ${level}`,
      ignore: lacking.has(level),
      async fn() {
        using device = await Device.open("cpu", { level, threads: 2 });
        await run(device);
      },
    });
  }
}

/** The copied outputs of a run as f32. */
async function outputs(device: Device, problem: Problem): Promise<Float32Array> {
  return new Float32Array((await execute(device, problem, problem.plan.exact)).at(-1)!.buffer);
}

test("R50: proportional RoPE at position 1000 turns 64 pairs (i, i + 256) and leaves the other lanes", async (device) => {
  const d = 512;
  const unit = Float64Array.from({ length: d }, () => Math.fround(1 / Math.sqrt(d)));
  const builder = new ProblemBuilder(new Random(1), [{ position: 1000 }]);
  const x = builder.activation("x", ["rows", d], unit);
  const y = builder.output("y", ["rows", d]);
  const rope = { theta: 1e6, rotatedPairs: 64, positionScale: 1 };
  const found = await outputs(
    device,
    builder.finish({ kind: "rope", x, y, heads: 1, headDim: d, rope }, true),
  );
  for (let i = 0; i < d; i++) {
    const pair = i % 256;
    const angle = pair < 64 ? 1000 * Math.pow(1e6, -2 * pair / d) : 0;
    const sign = i < 256 ? -1 : 1;
    const expected = unit[0] * (Math.cos(angle) + sign * Math.sin(angle));
    if (pair < 64) assertAlmostEquals(found[i], expected, 1e-7, `lane ${i}`);
    else assertEquals(found[i], unit[0], `lane ${i}`);
  }
});

/** See R54; made once for all instruction sets. */
let gathered: Prepared[] | undefined;

function gatheredCases(): Prepared[] {
  const list: ExpertDescription[] = [];
  for (const op of ["expert_gate_up", "expert_down", "expert_linear"] as const) {
    for (const pairs of [1, 63, 64, 65, 32767, 32768, 32800, 40002]) {
      for (const K of [1, 8]) {
        if (pairs % K > 0) continue;
        list.push({ op, rows: pairs / K, E: 9, K, k: 8, n: 2, format: { kind: "f32" }, decodeRows: 0 });
      }
    }
  }
  return list.map((d) => {
    const name = `${d.op} ${d.rows} rows × ${d.K} experts`;
    const build = (exact: boolean) => expertProblem(d, seedOf(name), exact);
    return prepare({ op: d.op, name, tolerance: PRODUCT, build } satisfies Partial<TableCase>);
  });
}

test("R54: any number of chosen experts, around 2^15 pairs too, leaves no row unwritten", async (device) => {
  // What is not written stays NaN, which no bound allows.
  for (const prepared of gathered ??= gatheredCases()) {
    for (const exact of [true, false]) {
      const { pass, error, reason } = await runCase(device, prepared, exact);
      assert(pass, `${prepared.case.name}, exact ${exact}: error ${error}; ${reason}`);
    }
  }
});

test("R60: keys and values beyond half's range stay finite in every cache, raw values as in Gemma 3", async (device) => {
  await checkRawValues(device, false);
});

test("R60: activations of 7e4 stay finite through every matrix product", async (device) => {
  for (const format of MAIN_FORMATS) {
    for (const rows of [1, 8, 63, 64, 65]) {
      for (const decodeRows of rows <= 16 ? [0, rows] : [0]) {
        for (const exact of [true, false]) {
          const d: LinearDescription = {
            rows,
            k: 256,
            n: [40, 40],
            format,
            magnitude: 7e4,
            decodeRows,
            epilogue: "geglu",
          };
          const found = await outputs(device, linearProblem(d, seedOf("overflow"), exact));
          const size = Math.sqrt(found.reduce((sum, value) => sum + value * value, 0) / found.length);
          assert(size > 1e9, `${format.kind} at ${rows} rows, exact ${exact}: products of size ${size}`);
          assert(found.every(Number.isFinite), `${format.kind} at ${rows} rows, exact ${exact}`);
        }
      }
    }
  }
});

test("R61: softcap 30 maps 0, 30, 124 and -1e4 to 0, 22.85, 29.98 and -30", async (device) => {
  const builder = new ProblemBuilder(new Random(2), [{ position: 0 }]);
  const x = builder.activation("x", ["rows", 4], Float64Array.of(0, 30, 124, -1e4));
  const y = builder.output("y", ["rows", 4]);
  const found = await outputs(device, builder.finish({ kind: "softcap", x, y, cap: 30 }, true));
  [0, 22.85, 29.98, -30].forEach((value, i) => assertAlmostEquals(found[i], value, 5e-3));

  // the same through the matrix product: an identity picks the four inputs
  const product = new ProblemBuilder(new Random(3), [{ position: 0, rowClass: "decode" }]);
  const identity = Float64Array.from({ length: 16 }, (_, i) => i % 5 === 0 ? 1 : 0);
  const w = product.plain("w", [4, 4], "bf16", identity);
  const capped = await outputs(
    device,
    product.finish({
      kind: "linear",
      x: product.activation("x", ["rows", 4], Float64Array.of(0, 30, 124, -1e4)),
      weights: [w],
      epilogue: { kind: "softcap", cap: 30 },
      y: product.output("y", ["rows", 4]),
      eps: 1e-6,
    }, true),
  );
  [0, 22.85, 29.98, -30].forEach((value, i) => assertAlmostEquals(capped[i], value, 5e-3));
});
