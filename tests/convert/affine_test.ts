import { assert, assertEquals } from "@std/assert";
import type { AffineBits, AffineGroupSize } from "../../src/checkpoint/tensor.ts";
import { fromBf16, quantizeRows, toBf16 } from "../../src/convert/affine.ts";
import { QuantizePool } from "../../src/convert/pool.ts";
import { dequantizeRow } from "../../src/conformance/oracle/dequantize.ts";
import { Random } from "../../src/conformance/random.ts";

const FORMATS = ([2, 3, 4, 5, 6, 8] as AffineBits[]).flatMap((bits) =>
  ([32, 64, 128] as AffineGroupSize[]).map((groupSize) => ({ bits, groupSize }))
);
const ROWS = 3, COLUMNS = 256;

function matrix(seed: number): Float32Array {
  return Float32Array.from(new Random(seed).normals(ROWS * COLUMNS, 0.01, 0.05));
}

/** What quantised rows stand for, by the oracle of the kernels. */
function meaning(rows: ReturnType<typeof quantizeRows>, format: (typeof FORMATS)[number]): number[] {
  const bytes = {
    data: new Uint8Array(rows.words.buffer),
    scales: new Uint8Array(rows.scales.buffer),
    biases: new Uint8Array(rows.biases.buffer),
  };
  return Array.from({ length: ROWS }, (_, row) => [
    ...dequantizeRow(bytes, { kind: "affine", ...format }, "bf16", COLUMNS, row),
  ]).flat();
}

Deno.test("every width and group size stays within a step and a half of the weights, as the kernels read it", () => {
  for (const format of FORMATS) {
    const values = matrix(format.bits * 1000 + format.groupSize);
    const read = meaning(quantizeRows(values, COLUMNS, format), format);
    for (let start = 0; start < values.length; start += format.groupSize) {
      const group = values.subarray(start, start + format.groupSize);
      const range = Math.max(...group) - Math.min(...group);
      // Up to a step at the end that gives way to a code for zero, half a step, and bf16 scale and bias.
      const allowed = 1.5 * range / (2 ** format.bits - 1) +
        (range + Math.max(...group.map(Math.abs))) * 2 ** -8;
      group.forEach((value, i) => {
        assert(
          Math.abs(read[start + i] - value) <= allowed,
          `${format.bits}/${format.groupSize} at ${start + i}`,
        );
      });
    }
  }
});

Deno.test("groups that are constant, zero or tiny stay finite and right", () => {
  const format = { bits: 4, groupSize: 64 } as const;
  for (const value of [0, 1, -2.5, 1e-30, -1e-9]) {
    for (const importance of [undefined, null]) {
      const rows = quantizeRows(new Float32Array(ROWS * COLUMNS).fill(value), COLUMNS, format, importance);
      for (const read of meaning(rows, format)) {
        assert(Math.abs(read - value) <= Math.abs(value) * 2 ** -8 + 1e-7, `${value} reads as ${read}`);
      }
    }
  }
});

Deno.test("the search never has a larger weighted error than the range, and mostly a much smaller one", () => {
  for (const format of FORMATS) {
    const values = matrix(format.bits + format.groupSize);
    const random = new Random(7);
    const importance = Float64Array.from({ length: COLUMNS }, () => random.uniform(0, 1) ** 4);
    const error = (rows: ReturnType<typeof quantizeRows>, start: number) => {
      const read = meaning(rows, format);
      let sum = 0;
      for (let i = start; i < start + format.groupSize; i++) {
        sum += importance[i % COLUMNS] * (read[i] - values[i]) ** 2;
      }
      return sum;
    };
    const plain = quantizeRows(values, COLUMNS, format);
    const searched = quantizeRows(values, COLUMNS, format, importance);
    let before = 0, after = 0;
    for (let start = 0; start < values.length; start += format.groupSize) {
      const [a, b] = [error(plain, start), error(searched, start)];
      assert(b <= a * 1.01, `${format.bits}/${format.groupSize}: ${b} after ${a}`); // columns of no weight count a little
      before += a;
      after += b;
    }
    assert(after < before * 0.95, `${format.bits}/${format.groupSize}: ${after} after ${before}`);
  }
});

Deno.test("bf16 rounds to the nearest, ties to even, and back", () => {
  for (
    const [value, bits] of [[1, 0x3f80], [-2, 0xc000], [1.00390625, 0x3f80], [1.01171875, 0x3f82], [0, 0]]
  ) {
    assertEquals(toBf16(value), bits);
  }
  for (let bits = 0; bits < 0x7f80; bits += 97) assertEquals(toBf16(fromBf16(bits)), bits);
});

Deno.test("threads give the same bits as the caller's own, in any number, and pass their failures on", async () => {
  const format = { bits: 3, groupSize: 64 } as const;
  const expected = [1, 2, 3, 4, 5, 6, 7].map((seed) => quantizeRows(matrix(seed), COLUMNS, format, null));
  for (const threads of [0, 1, 3]) {
    using pool = new QuantizePool(threads);
    const request = (seed: number) => ({
      values: matrix(seed).slice(),
      columns: COLUMNS,
      format,
      importance: null,
    });
    assertEquals(await Promise.all([1, 2, 3, 4, 5, 6, 7].map((seed) => pool.run(request(seed)))), expected);
    const wrong = { ...request(1), format: { bits: 4, groupSize: -1 } } as unknown as Parameters<
      typeof pool.run
    >[0];
    const failure = await pool.run(wrong).then(() => null, (error) => error);
    assert(failure instanceof Error);
    assertEquals(await pool.run(request(2)), expected[1], "the next block is not harmed");
  }
});
