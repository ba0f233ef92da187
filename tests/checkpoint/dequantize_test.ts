import { assertEquals } from "@std/assert";
import { openCheckpoint } from "../../src/checkpoint/open.ts";
import { parseHeader } from "../../src/checkpoint/safetensors.ts";
import type { FileRange, WeightTensor } from "../../src/checkpoint/tensor.ts";
import { dequantizeRow, fromE4m3, readNumber } from "../../src/conformance/oracle/dequantize.ts";
import { MODELS } from "../support/models.ts";
import { folderOf, onRow, readJson } from "./support.ts";

const ROWS = [
  ...MODELS.small.filter((name) => name.includes("mlx")),
  "26b-a4b-mlx-4bit",
  "31b-mlx-4bit",
  ...MODELS.media,
  ...MODELS.tiny,
];

interface Probe {
  tensor: string;
  flat_row: number;
}

/** Every weight of a checkpoint by module path as the file spells it. */
function byModule(value: unknown, found = new Map<string, WeightTensor>()): Map<string, WeightTensor> {
  if (typeof value !== "object" || value === null) return found;
  if ("format" in value && "parts" in value) {
    const weight = value as WeightTensor;
    found.set(weight.name.replace(/\.weight$/, ""), weight);
  } else Object.values(value).forEach((inner) => byModule(inner, found));
  return found;
}

for (const row of ROWS) {
  Deno.test({
    ...onRow(row, "each dequantised row equals the reference bit for bit"),
    async fn() {
      const { weights, files } = await openCheckpoint(folderOf(row));
      const bytes = Deno.readFileSync(files[0].path);
      const slice = (range?: FileRange) => range && bytes.slice(range.offset, range.offset + range.length);
      const golden = Deno.readFileSync(`${folderOf(row)}/golden.safetensors`);
      const length = Number(new DataView(golden.buffer).getBigUint64(0, true));
      const { tensors } = parseHeader(golden.subarray(8, 8 + length), golden.length, "golden", 0);
      const modules = byModule(weights());
      const probes = readJson(row, "golden.json").dequant_probes as Probe[];
      let compared = 0;
      for (const { tensor, flat_row } of probes) {
        const weight = modules.get(tensor);
        if (weight === undefined) continue; // a module of the towers
        const { data, scales, biases } = weight.parts;
        const actual = dequantizeRow(
          { data: slice(data)!, scales: slice(scales), biases: slice(biases) },
          weight.format,
          weight.scaleDtype,
          weight.shape.at(-1)!,
          flat_row,
        );
        const { data: at } = tensors.find(({ name }) => name === `dequant.${tensor}`)!;
        const expected = golden.slice(at.offset, at.offset + at.length);
        assertEquals(
          Array.from(actual, Math.fround),
          Array.from(actual, (_, i) => readNumber(expected, "f32", i)),
          `${tensor} row ${flat_row}`,
        );
        compared++;
      }
      assertEquals(compared >= 8, true, `${compared} of ${probes.length} probes compared`);
    },
  });
}

Deno.test("the 8-bit float has its largest, smallest and missing values", () => {
  assertEquals([0x7e, 0x01, 0x08, 0xfe, 0x38, 0x7f].map(fromE4m3), [448, 2 ** -9, 2 ** -6, -448, 1, NaN]);
});

Deno.test("mxfp8 scales e4m3 codes by a power of two per 32 columns", () => {
  const data = new Uint8Array(64).fill(0x38);
  data[33] = 0x7e;
  const row = dequantizeRow({ data, scales: new Uint8Array([127, 130]) }, { kind: "mxfp8" }, "u8", 64, 0);
  assertEquals([row[0], row[31], row[32], row[33]], [1, 1, 8, 448 * 8]);
});

Deno.test("2-bit codes and f32 scales follow the same formula", () => {
  const data = new Uint8Array(8).fill(0b11_10_01_00);
  const scales = new Uint8Array(new Float32Array([0.5]).buffer);
  const biases = new Uint8Array(new Float32Array([-1]).buffer);
  const row = dequantizeRow(
    { data, scales, biases },
    { kind: "affine", bits: 2, groupSize: 32 },
    "f32",
    32,
    0,
  );
  assertEquals(Array.from(row.subarray(0, 5)), [-1, -0.5, 0, 0.5, -1]);
});
