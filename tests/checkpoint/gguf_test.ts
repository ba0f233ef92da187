import { assertEquals, assertStringIncludes, assertThrows } from "@std/assert";
import { bytesSource } from "../support/bytes_source.ts";
import { parseGguf } from "../../src/checkpoint/gguf.ts";
import { readNumbers, readTexts } from "../../src/checkpoint/gguf_metadata.ts";
import { CheckpointError } from "../../src/errors.ts";
import { ByteWriter, type GgufContent, type TensorEntry, type Value, writeGguf } from "./gguf_writer.ts";

function parse(content: GgufContent | Uint8Array) {
  const bytes = content instanceof Uint8Array ? content : writeGguf(content);
  return { ...parseGguf(bytesSource(bytes), "m.gguf", 0), source: bytesSource(bytes) };
}

const F32: TensorEntry = { name: "a", shape: [2, 3], type: 0, data: new Uint8Array(24) };
const Q4_0: TensorEntry = { name: "b", shape: [2, 64], type: 2, data: new Uint8Array(72) };
const one = (value: Value): GgufContent => ({ metadata: [["key", value]] });

for (const version of [2, 3]) {
  Deno.test(`version ${version}: tensors have row-major shapes, their type's name and their place`, () => {
    const { tensors, version: read } = parse({ version, tensors: [F32, Q4_0] });
    assertEquals(read, version);
    const start = tensors[0].data.offset;
    assertEquals(start % 32, 0);
    assertEquals(tensors, [
      { name: "a", dtype: "F32", shape: [2, 3], data: { file: 0, offset: start, length: 24 } },
      { name: "b", dtype: "Q4_0", shape: [2, 64], data: { file: 0, offset: start + 32, length: 72 } },
    ]);
  });
}

Deno.test("metadata of every type comes back with its value", () => {
  const values: [string, Value, unknown][] = [
    ["u8", { type: "u8", value: 255 }, 255],
    ["i8", { type: "i8", value: -1 }, -1],
    ["u16", { type: "u16", value: 65535 }, 65535],
    ["i16", { type: "i16", value: -2 }, -2],
    ["u32", { type: "u32", value: 4294967295 }, 4294967295],
    ["i32", { type: "i32", value: -3 }, -3],
    ["f32", { type: "f32", value: 0.5 }, 0.5],
    ["yes", { type: "bool", value: true }, true],
    ["text", { type: "string", value: "Grüße" }, "Grüße"],
    ["u64", { type: "u64", value: 2 ** 53 - 1 }, 2 ** 53 - 1],
    ["large", { type: "u64", value: 2n ** 63n }, 2n ** 63n],
    ["i64", { type: "i64", value: -4 }, -4],
    ["f64", { type: "f64", value: Math.PI }, Math.PI],
    ["numbers", { type: "array", of: "i32", value: [1, -2, 3] }, [1, -2, 3]],
    ["truths", { type: "array", of: "bool", value: [true, false] }, [true, false]],
    ["none", { type: "array", of: "f32", value: [] }, []],
  ];
  const { metadata } = parse({ metadata: values.map(([key, value]) => [key, value]) });
  for (const [key, , expected] of values) assertEquals(metadata.get(key), expected, key);
  assertEquals(metadata.keys(), values.map(([key]) => key));
});

Deno.test("long lists stay in the file and are read when they are asked for", () => {
  const texts = Array.from({ length: 3000 }, (_, i) => i % 3 === 0 ? "" : `ein Stück ${i} 😀`.repeat(i % 50));
  const numbers = Array.from({ length: 3000 }, (_, i) => i - 1500);
  const huge = "x".repeat(3_000_000);
  const { metadata, source } = parse({
    metadata: [
      ["texts", { type: "array", of: "string", value: [...texts, huge, "end"] }],
      ["numbers", { type: "array", of: "f32", value: numbers }],
    ],
  });
  assertEquals(metadata.get("numbers"), { type: "f32", count: 3000, ...place(metadata.get("numbers")) });
  assertEquals([...readTexts(source, metadata, "texts")], [...texts, huge, "end"]);
  assertEquals([...readNumbers(source, metadata, "numbers") as Float64Array], numbers);
  assertThrows(() => readTexts(source, metadata, "numbers"), CheckpointError, "a list of texts");
  assertThrows(() => readNumbers(source, metadata, "texts"), CheckpointError, "a list of numbers");
});

function place(list: unknown): { offset: number; length: number } {
  const { offset, length } = list as { offset: number; length: number };
  return { offset, length };
}

Deno.test("texts of a list that are no UTF-8 each are refused, also where two together would be", () => {
  for (const parts of [[[0xff]], [[0xc3], [0xa9]], [[0x41, 0xf0, 0x9f], [0x98, 0x80]]]) {
    const list = new ByteWriter().u32(8).u64(parts.length);
    for (const part of parts) list.u64(part.length).bytes(new Uint8Array(part));
    const head = new ByteWriter().bytes(new TextEncoder().encode("GGUF")).u32(3).u64(0).u64(1).text("k").u32(
      9,
    );
    const bytes = head.bytes(list.finish()).finish();
    const { metadata, source } = parse(bytes);
    assertThrows(() => readTexts(source, metadata, "k"), CheckpointError, "not valid UTF-8");
  }
});

const nested = (depth: number): Uint8Array => {
  const writer = new ByteWriter().bytes(new TextEncoder().encode("GGUF")).u32(3).u64(0).u64(1).text("k").u32(
    9,
  );
  for (let i = 1; i < depth; i++) writer.u32(9).u64(1);
  return writer.u32(4).u64(1).u32(7).finish();
};

Deno.test("lists of lists are walked over, up to a depth", () => {
  assertEquals(parse(nested(4)).metadata.has("k"), true);
  assertThrows(() => parse(nested(5)), CheckpointError, "nests deeper than 4");
  assertThrows(() => parse(nested(100_000)), CheckpointError, "nests deeper than 4");
});

/** [what is wrong, the file, words of the message]. */
const BROKEN: [string, GgufContent | Uint8Array, string[]][] = [
  ["no bytes", new Uint8Array(), ["truncated"]],
  ["another magic", { magic: "GGML" }, ["no GGUF file", "0x4c4d4747"]],
  ["version 1", { version: 1 }, ["version 1", "2 and 3"]],
  ["version 4", { version: 4 }, ["version 4"]],
  ["big-endian numbers", { version: 3 << 24 }, ["big-endian"]],
  ["more tensors than bytes", { tensorCount: 16_000n }, ["16000 tensors", "truncated"]],
  ["too many tensors", { tensorCount: 2n ** 40n }, ["1099511627776 tensors", "limit"]],
  ["2⁶⁴ - 1 tensors", { tensorCount: 2n ** 64n - 1n }, ["more than 2^53 tensors"]],
  ["too many entries", { entryCount: 2n ** 62n }, ["more than 2^53 metadata entries"]],
  ["more entries than bytes", { entryCount: 1000n }, ["1000 metadata entries", "truncated"]],
  ["a key twice", { metadata: [["k", { type: "u8", value: 1 }], ["k", { type: "u8", value: 2 }]] }, [
    '"k" twice',
  ]],
  ["an empty key", { metadata: [["", { type: "u8", value: 1 }]] }, ["key is empty"]],
  ["a key of 2000 bytes", { metadata: [["k".repeat(2000), { type: "u8", value: 1 }]] }, ["2000 bytes"]],
  ["a boolean of 2", one({ type: "bool", value: 2 }), ['"key"', "boolean 2"]],
  ["a listed boolean of 7", one({ type: "array", of: "bool", value: [0, 7] }), ['"key"', "boolean 7"]],
  ["an unknown value type", unknownValueType(13), ['"k"', "unknown type 13"]],
  ["a list of an unknown type", listOf(77, 5n), ['"k"', "unknown type 77"]],
  ["a list longer than the file", listOf(4, 1n << 20n), ["truncated"]],
  ["a list of 2⁶¹ numbers", listOf(10, 1n << 61n), ["more than 2^53"]],
  ["a list of 2³⁰ texts", listOf(8, 1n << 30n), ["limit"]],
  ["a list of more texts than bytes", listOf(8, 1n << 20n), ["1048576 elements"]],
  ["a text beyond the end", textOf(1n << 20n), ["1048576 bytes"]],
  ["a text of 2⁶⁴ - 1 bytes", textOf((1n << 64n) - 1n), ["more than 2^53 bytes"]],
  ["a text of 5 MB", one({ type: "string", value: "x".repeat(5_000_000) }), ["5000000 bytes", "limit"]],
  ["an alignment of 0", aligned(0), ["alignment 0"]],
  ["an alignment of 24", aligned(24), ["alignment 24"]],
  ["an alignment of 4", aligned(4), ["alignment 4"]],
  ["an alignment of 2³⁰", aligned(2 ** 30), ["alignment 1073741824"]],
  ["no dimensions", { tensors: [{ ...F32, shape: [] }] }, ['"a"', "0 dimensions"]],
  ["five dimensions", { tensors: [{ ...F32, shape: [1, 1, 1, 2, 3] }] }, ['"a"', "5 dimensions"]],
  ["an empty dimension", { tensors: [{ ...F32, shape: [0, 3] }] }, ['"a"', "0 elements"]],
  ["a size of 2⁶⁰", { tensors: [{ ...F32, shape: [2 ** 60, 3] }] }, ['"a"', "more than 2^53"]],
  ["a product that overflows", { tensors: [{ ...F32, shape: [2 ** 30, 2 ** 30] }] }, ['"a"', "overflows"]],
  ["a product that wraps to 0 in 64 bits", { tensors: [{ ...F32, shape: [2 ** 32, 2 ** 32] }] }, [
    "overflows",
  ]],
  ["part of a block", { tensors: [{ ...Q4_0, shape: [2, 63] }] }, [
    '"b"',
    "63 columns",
    "blocks of 32 (Q4_0)",
  ]],
  ["an unknown element type", { tensors: [{ ...F32, type: 99 }] }, ['"a"', "unknown type 99", "Q4_0"]],
  ["an element type without kernels", { tensors: [{ ...F32, type: 18 }] }, ['"a"', "IQ3_XXS", "Q4_K"]],
  ["a name twice", { tensors: [F32, { ...F32 }] }, ['"a" twice']],
  ["no name", { tensors: [{ ...F32, name: "" }] }, ["no name"]],
  ["a name of 300 bytes", { tensors: [{ ...F32, name: "n".repeat(300) }] }, ["300 bytes"]],
  ["an offset between steps", { tensors: [{ ...F32, offset: 8 }] }, ['"a"', "8", "multiple of 32"]],
  ["an offset beyond the file", { tensors: [{ ...F32, offset: 2 ** 40 }] }, ['"a"', "truncated"]],
  ["an offset of 2⁶³", { tensors: [{ ...F32, offset: 2 ** 63 }] }, ['"a"', "2^52"]],
  ["data that ends early", writeGguf({ tensors: [F32] }).slice(0, -1), ['"a"', "truncated"]],
  ["overlapping data", { tensors: [Q4_0, { ...F32, offset: 64 }] }, ['"a"', "overlaps"]],
];
for (const [what, content, words] of BROKEN) {
  Deno.test(`a file with ${what} is refused by name`, () => {
    const error = assertThrows(() => parse(content), CheckpointError);
    for (const word of ["m.gguf", ...words]) assertStringIncludes(error.message, word);
  });
}

Deno.test("a file that ends after any of its bytes but the last is refused", () => {
  const whole = writeGguf({
    metadata: [["general.alignment", { type: "u32", value: 64 }], ["l", {
      type: "array",
      of: "string",
      value: ["a", "b"],
    }]],
    tensors: [F32],
    alignment: 64,
  });
  for (let length = 0; length < whole.length; length++) {
    const error = assertThrows(() => parse(whole.slice(0, length)), CheckpointError, "m.gguf");
    assertEquals(error.code, "invalid_gguf", `${length} bytes`);
  }
  assertEquals(parse(whole).tensors[0].data.offset % 64, 0);
});

function unknownValueType(type: number): Uint8Array {
  return entry().u32(type).u64(0).finish();
}

function listOf(type: number, count: bigint): Uint8Array {
  return entry().u32(9).u32(type).u64(count).u64(0).finish();
}

function textOf(length: bigint): Uint8Array {
  return entry().u32(8).u64(length).u64(0).finish();
}

/** A header up to the value of its only entry. */
function entry(): ByteWriter {
  return new ByteWriter().bytes(new TextEncoder().encode("GGUF")).u32(3).u64(0).u64(1).text("k");
}

function aligned(value: number): GgufContent {
  return { metadata: [["general.alignment", { type: "u32", value }]], tensors: [F32] };
}
