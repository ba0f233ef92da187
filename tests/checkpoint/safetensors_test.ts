import { assertEquals, assertStringIncludes, assertThrows } from "@std/assert";
import { headerLength, parseHeader } from "../../src/checkpoint/safetensors.ts";
import { parseShardIndex } from "../../src/checkpoint/shards.ts";
import { CheckpointError } from "../../src/errors.ts";
import { folderOf, withHeader, writeSafetensors } from "./support.ts";
import { cpuMilliseconds } from "../support/cpu_time.ts";

/** Parses a whole file that lies in memory. */
function parse(bytes: Uint8Array, fileSize = bytes.length) {
  const length = headerLength(bytes.subarray(0, 8), fileSize, "x.safetensors");
  return parseHeader(bytes.subarray(8, 8 + length), fileSize, "x.safetensors", 0);
}

function refused(bytes: Uint8Array, ...words: string[]) {
  const error = assertThrows(() => parse(bytes), CheckpointError);
  assertEquals(error.code, "invalid_safetensors");
  for (const word of words) assertStringIncludes(error.message, word);
}

const tensor = (begin: number, end: number, shape: unknown = [end - begin], dtype = "U8") =>
  JSON.stringify({ dtype, shape, data_offsets: [begin, end] });

Deno.test("tensors come back in the order of their data with offsets from the file's start", () => {
  const bytes = withHeader(
    `{"b":${tensor(2, 6, [1], "F32")},"a":${tensor(0, 2)},"__metadata__":{"format":"pt"}}`,
  );
  const { tensors, metadata } = parse(bytes, bytes.length + 6);
  assertEquals(
    tensors.map(({ name, shape, data }) => [name, shape, data.offset - bytes.length, data.length]),
    [
      ["a", [2], 0, 2],
      ["b", [1], 2, 4],
    ],
  );
  assertEquals(metadata, new Map([["format", "pt"]]));
});

Deno.test("data that begins at an odd offset, empty tensors, scalars and trailing spaces are fine", () => {
  const bytes = withHeader(
    `{"a":${tensor(0, 0, [0, 3], "BF16")},"s":${tensor(0, 2, [], "BF16")}} `,
    new Uint8Array(2),
  );
  const { tensors } = parse(bytes);
  assertEquals(tensors.map(({ shape }) => shape), [[0, 3], []]);
  assertEquals(tensors[1].data.offset % 2, 1);
});

Deno.test("an empty file, a cut length and a cut header are truncated", () => {
  refused(new Uint8Array(0), "truncated", "0 bytes");
  refused(new Uint8Array(7), "truncated", "7 bytes");
  refused(withHeader(`{"a":${tensor(0, 1)}}`).subarray(0, 30), "truncated", "30");
});

Deno.test("cut data names the tensor that is cut", () => {
  refused(withHeader(`{"a":${tensor(0, 4)},"b":${tensor(4, 8)}}`, new Uint8Array(7)), '"b"', "truncated");
});

Deno.test("a header of more than 100 MB is refused before it is read", () => {
  const prefix = new Uint8Array(8);
  new DataView(prefix.buffer).setBigUint64(0, 100_000_001n, true);
  assertThrows(() => headerLength(prefix, 2 ** 40, "x"), CheckpointError, "100000001");
  new DataView(prefix.buffer).setBigUint64(0, 2n ** 64n - 1n, true);
  assertThrows(() => headerLength(prefix, 2 ** 40, "x"), CheckpointError, "18446744073709551615");
});

Deno.test("overlaps, gaps and a rest are refused", () => {
  const data = new Uint8Array(8);
  refused(withHeader(`{"a":${tensor(0, 5)},"b":${tensor(4, 8)}}`, data), '"b"', "overlaps");
  refused(withHeader(`{"a":${tensor(0, 8)},"b":${tensor(0, 8)}}`, data), '"b"', "overlaps");
  refused(withHeader(`{"a":${tensor(0, 3)},"b":${tensor(4, 8)}}`, data), '"b"', "1 unused bytes");
  refused(withHeader(`{"a":${tensor(0, 7)}}`, data), "1 bytes follow");
});

Deno.test("a key twice is refused at any level, escaped spellings too", () => {
  const data = new Uint8Array(1);
  refused(withHeader(`{"a":${tensor(0, 1)},"a":${tensor(0, 1)}}`, data), '"a" twice');
  refused(withHeader(`{"a":${tensor(0, 1)},"\\u0061":${tensor(0, 1)}}`, data), '"a" twice');
  refused(
    withHeader(`{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}`, data),
    '"dtype" twice',
  );
  refused(withHeader(`{"__metadata__":{"k":"1","k":"2"},"a":${tensor(0, 1)}}`, data), '"k" twice');
});

Deno.test("100,000 tensors are checked for duplicates in linear time", () => {
  const header = `{${Array.from({ length: 100_000 }, (_, i) => `"t${i}":${tensor(i, i + 1)}`).join()}}`;
  const bytes = withHeader(header, new Uint8Array(100_000));
  const start = cpuMilliseconds();
  assertEquals(parse(bytes).tensors.length, 100_000);
  assertEquals(cpuMilliseconds() - start < 5000, true);
});

Deno.test("shapes that overflow are refused, a size of 0 notwithstanding", () => {
  for (const shape of [[2 ** 52, 4], [2 ** 40, 2 ** 40, 2 ** 40], [2 ** 52, 2 ** 52, 0]]) {
    refused(withHeader(`{"a":${tensor(0, 0, shape, "F32")}}`), '"a"', "overflows");
  }
});

Deno.test("shape times dtype must be the length of the data", () => {
  refused(withHeader(`{"a":${tensor(0, 8, [3], "BF16")}}`, new Uint8Array(8)), '"a"', "8 bytes", "takes 6");
});

const MALFORMED: [string, string][] = [
  ["an unknown dtype", tensor(0, 1, [1], "Q4")],
  ["a dtype that is an object's own method", tensor(0, 1, [1], "toString")],
  ["a negative size", tensor(0, 1, [-1])],
  ["a fraction as size", tensor(0, 1, [0.5])],
  ["a shape that is no list", tensor(0, 1, { "0": 1 })],
  ["too many dimensions", tensor(0, 1, Array(9).fill(1))],
  ["an end before the begin", tensor(1, 0, [1])],
  ["three offsets", `{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}`],
  [
    "an offset beyond exact integers",
    `{"dtype":"U8","shape":[1],"data_offsets":[9007199254740993,9007199254740994]}`,
  ],
  ["no offsets", `{"dtype":"U8","shape":[1]}`],
  ["an extra key", `{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}`],
  ["a number in its place", "7"],
  ["null in its place", "null"],
];
for (const [what, entry] of MALFORMED) {
  Deno.test(`a tensor with ${what} is refused by name`, () => {
    refused(withHeader(`{"weird":${entry}}`, new Uint8Array(1)), '"weird"');
  });
}

Deno.test("headers that are not JSON objects in UTF-8 are refused", () => {
  refused(withHeader("[]"), 'start with "{"');
  refused(withHeader(""), 'start with "{"');
  refused(withHeader(" {}"), 'start with "{"');
  refused(withHeader("\ufeff{}"), 'start with "{"');
  refused(withHeader("{"), "not valid JSON");
  refused(withHeader(`{"a":${tensor(0, 1)},}`, new Uint8Array(1)), "not valid JSON");
  refused(withHeader(`{"__metadata__":{"k":1}}`), '"k"');
  refused(withHeader(`{"__metadata__":[]}`), "__metadata__");
  const bytes = withHeader(`{"a":${tensor(0, 1)}}`, new Uint8Array(1));
  bytes[10] = 0xff;
  refused(bytes, "UTF-8");
});

Deno.test("deep nesting is refused before it is parsed", () => {
  refused(withHeader(`{"a":${"[".repeat(1_000_000)}`), "nests deeper");
});

Deno.test("more tensors than the limit are refused", () => {
  const header = `{${Array.from({ length: 262_145 }, (_, i) => `"${i}":${tensor(0, 0, [0])}`).join()}}`;
  refused(withHeader(header), "262145 tensors");
});

Deno.test("2,000 mutated headers give a typed error or tensors inside the file, each within a second", () => {
  const original = Deno.readFileSync(`${folderOf("e2b")}/model.safetensors`);
  const length = headerLength(original, original.length, "x");
  const head = original.slice(0, 8 + length);
  let seed = 1;
  const random = (below: number) => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor(seed / 2 ** 32 * below);
  };
  let errors = 0;
  for (let round = 0; round < 2000; round++) {
    const bytes = head.slice();
    for (let i = 0; i <= random(4); i++) {
      const at = random(20) === 0 ? random(8) : 8 + random(length);
      // Digits, brackets, quotes and arbitrary bytes, each often.
      bytes[at] = [random(256), 0x30 + random(10), '{}[],:"\\'.charCodeAt(random(8))][random(3)];
    }
    const start = cpuMilliseconds();
    try {
      for (const { data, shape } of parse(bytes, original.length).tensors) {
        assertEquals(data.offset >= 8 && data.offset + data.length <= original.length, true);
        assertEquals(shape.every(Number.isSafeInteger), true);
      }
    } catch (error) {
      if (!(error instanceof CheckpointError)) throw error;
      errors++;
    }
    assertEquals(cpuMilliseconds() - start < 1000, true);
  }
  // Most mutations break something; those inside a name do not.
  assertEquals(errors > 500 && errors < 2000, true, `${errors} errors`);
});

Deno.test("a file of this test's own writer parses", () => {
  const file = writeSafetensors({ a: { dtype: "F32", shape: [1], data: new Uint8Array(4) } });
  assertEquals(parse(file).tensors.length, 1);
});

Deno.test("an index cannot point outside its folder", () => {
  for (
    const shard of [
      "../model.safetensors",
      "/etc/model.safetensors",
      "a/b.safetensors",
      "..\\model.safetensors",
      "c:model.safetensors",
      "..",
      ".safetensors",
      "model.bin",
      "",
      "m\0.safetensors",
      7,
      null,
    ]
  ) {
    const text = JSON.stringify({ weight_map: { "a.weight": shard } });
    const error = assertThrows(() => parseShardIndex(text), CheckpointError);
    assertStringIncludes(error.message, '"a.weight"');
  }
});

Deno.test("an index without a map, with a tensor twice or that is no JSON is refused", () => {
  assertThrows(() => parseShardIndex("{}"), CheckpointError, "weight_map");
  assertThrows(() => parseShardIndex("null"), CheckpointError, "weight_map");
  assertThrows(() => parseShardIndex(`{"weight_map":{}}`), CheckpointError, "no tensor");
  const twice = `{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}`;
  assertThrows(() => parseShardIndex(twice), CheckpointError, '"a" twice');
  assertThrows(() => parseShardIndex("{"), CheckpointError, "JSON");
});
