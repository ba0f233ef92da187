/**
 * Ten thousand damaged headers, half safetensors, half GGUF, the same each time: each is read or refused with a typed
 * error, within a second and without more than 64 MB.
 */
import { assert, assertEquals } from "@std/assert";
import { bytesSource } from "../support/bytes_source.ts";
import {
  MAX_GGUF_ENTRIES,
  MAX_GGUF_HEADER_BYTES,
  MAX_GGUF_TENSORS,
  parseGguf,
} from "../../src/checkpoint/gguf.ts";
import { ggufConfig } from "../../src/checkpoint/gguf_config.ts";
import { parseConfig } from "../../src/checkpoint/config.ts";
import { ggufNaming } from "../../src/checkpoint/gguf_names.ts";
import { headerLength, parseHeader } from "../../src/checkpoint/safetensors.ts";
import { textWeights } from "../../src/checkpoint/weights.ts";
import { MarkbaseError } from "../../src/errors.ts";
import { vocabularyFromGguf } from "../../src/tokenizer/gguf.ts";
import { Tokenizer } from "../../src/tokenizer/tokenizer.ts";
import { randomIntegers } from "../tokenizer/random.ts";
import { folderOf } from "./support.ts";
import { ByteWriter, type Value, writeGguf } from "./gguf_writer.ts";
import { cpuMilliseconds } from "../support/cpu_time.ts";

const CASES = 5000; // of each format
const MOST_SECONDS = 1;
const MOST_BYTES = 64 * 2 ** 20;

/** Numbers that break readers: ends of ranges, and products that wrap. */
const HOSTILE = [0n, 1n, 7n, 0x7fn, 0xffn, 0x7fffn, 0xffffn, 1n << 31n, (1n << 31n) - 1n, (1n << 32n) - 1n]
  .concat([
    1n << 32n,
    (1n << 53n) - 1n,
    1n << 53n,
    (1n << 61n) + 1n,
    (1n << 63n) - 1n,
    1n << 63n,
    (1n << 64n) - 1n,
  ]);
const TEXTS = [
  '"',
  "{",
  "[[",
  "]]",
  "\\",
  "}",
  ":",
  ",",
  "-1",
  "1e309",
  "null",
  '"a":',
  "\u0000",
  "18446744073709551615",
]
  .concat([
    '"dtype"',
    '"shape":[',
    '"data_offsets":[0,',
    "9007199254740993",
    '"F4"',
    '"BOOL"',
    "__metadata__",
  ]);

/** One to four changes of the first `length` bytes: bits, bytes, hostile numbers and texts, cuts and doublings. */
function mutate(
  bytes: Uint8Array,
  length: number,
  random: (below: number) => number,
): Uint8Array<ArrayBuffer> {
  let changed = bytes.slice();
  for (let round = random(4); round >= 0; round--) {
    const at = random(Math.min(length, changed.length));
    const view = new DataView(changed.buffer);
    switch (random(8)) {
      case 0:
        changed[at] ^= 1 << random(8);
        break;
      case 1:
        changed[at] = random(256);
        break;
      case 2:
      case 3: {
        const value = HOSTILE[random(HOSTILE.length)];
        if (at + 8 <= changed.length) view.setBigUint64(at, value, true);
        break;
      }
      case 4:
        if (at + 4 <= changed.length) {
          view.setUint32(at, Number(HOSTILE[random(HOSTILE.length)] & 0xffffffffn), true);
        }
        break;
      case 5: {
        const text = new TextEncoder().encode(TEXTS[random(TEXTS.length)]);
        changed.set(text.subarray(0, changed.length - at), at);
        break;
      }
      case 6:
        changed = changed.slice(0, at + 1); // cut off
        break;
      case 7: { // a stretch comes twice, or is lost
        const end = Math.min(at + 1 + random(64), changed.length);
        const [to, from] = random(2) === 0 ? [end, at] : [at, end];
        const spliced = new Uint8Array(to + changed.length - from);
        spliced.set(changed.subarray(0, to));
        spliced.set(changed.subarray(from), to);
        changed = spliced;
      }
    }
  }
  return changed;
}

/** Runs all cases of a format; `read` returns for a sound file and throws for others. */
function readAll(
  seed: number,
  originals: readonly { bytes: Uint8Array; header: number }[],
  read: (bytes: Uint8Array<ArrayBuffer>) => void,
): void {
  const random = randomIntegers(seed);
  let refused = 0;
  for (let i = 0; i < CASES; i++) {
    const { bytes, header } = originals[i % originals.length];
    const mutated = mutate(bytes, header, random);
    const label = `case ${i} of seed ${seed}`;
    checkCost(label, () => {
      try {
        read(mutated);
      } catch (error) {
        refused++;
        if (!(error instanceof MarkbaseError)) throw new Error(label, { cause: error });
        assert(error.message.length < 4000, `${label}: a message of ${error.message.length} characters`);
      }
    });
  }
  // Most changes must matter, and some must not, or the mutations are not what they should be.
  assert(refused > CASES / 2 && refused < CASES, `${refused} of ${CASES} were refused`);
}

Deno.test("5,000 damaged safetensors headers are read or refused with a typed error, soon and in little memory", () => {
  const config = parseConfig(JSON.parse(Deno.readTextFileSync(`${folderOf("e2b-mlx-4bit")}/config.json`)));
  const bytes = Deno.readFileSync(`${folderOf("e2b-mlx-4bit")}/model.safetensors`);
  const length = headerLength(bytes, bytes.length, "m");
  const size = bytes.length;
  const header = bytes.slice(0, 8 + length);
  readAll(1, [{ bytes: header, header: header.length }], (mutated) => {
    // As if the data followed, so that a changed header is not refused for its size alone.
    const length = headerLength(mutated, size, "m");
    const { tensors } = parseHeader(mutated.subarray(8, 8 + length), size, "m", 0);
    textWeights(tensors, config);
  });
});

Deno.test("5,000 damaged GGUF headers are read or refused with a typed error, soon and in little memory", () => {
  const originals = ["26b-a4b-gguf-q4_0", "kq-gguf-q4_k_m", "tiny-gguf-iq4_nl"].map((row) => {
    const bytes = Deno.readFileSync(`${folderOf(row)}/model.gguf`);
    const { tensors } = parseGguf(bytesSource(bytes), row, 0);
    return {
      bytes: bytes.slice(0, tensors[0].data.offset),
      header: tensors[0].data.offset,
      size: bytes.length,
    };
  });
  const vocabulary = pieces();
  originals.push({ bytes: vocabulary, header: vocabulary.length, size: 1 << 20 });
  const size = Math.max(...originals.map((original) => original.size));
  readAll(2, originals, (mutated) => {
    const source = { size, read: (offset: number, length: number) => part(mutated, offset, length) };
    const { metadata, tensors } = parseGguf(source, "m", 0);
    const byName = new Map(tensors.map((tensor) => [tensor.name, tensor]));
    const ropeFactors = new Float32Array(32).fill(1e30).fill(1, 0, 8);
    try {
      const vocabulary = vocabularyFromGguf(metadata, source);
      if (vocabulary !== null) new Tokenizer(vocabulary).encode("some text, and a bit more of it: 123");
    } catch (error) {
      if (!(error instanceof MarkbaseError)) throw error;
    }
    const config = parseConfig(ggufConfig({ metadata, tensors: byName, ropeFactors }), null, "m");
    textWeights(tensors, config, ggufNaming(byName.keys()));
  });
});

/** Bytes of a file that goes on with zeros; valid until the next call. */
function part(bytes: Uint8Array, offset: number, length: number): Uint8Array {
  const given = bytes.subarray(offset, offset + length);
  if (given.length === length) return given;
  if (padded.length < length) padded = new Uint8Array(length);
  padded.fill(0, given.length, length).set(given);
  return padded.subarray(0, length);
}

let padded = new Uint8Array(1 << 20);

/** Checks how long `use` takes and by how much the process has grown after it. */
function checkCost(label: string, use: () => void): void {
  const before = Deno.memoryUsage().rss;
  const start = cpuMilliseconds();
  use();
  const milliseconds = cpuMilliseconds() - start;
  const bytes = Deno.memoryUsage().rss - before;
  assert(milliseconds < MOST_SECONDS * 1000, `${label} took ${milliseconds} ms`);
  assert(bytes < MOST_BYTES, `${label} took ${bytes} bytes`);
}

Deno.test("the longest header, eight million empty texts, is walked over within a second and kept nowhere", () => {
  const head = new ByteWriter().bytes(new TextEncoder().encode("GGUF")).u32(3).u64(0).u64(1);
  head.text("k").u32(9).u32(8).u64((MAX_GGUF_HEADER_BYTES - 100) >> 3);
  const header = head.finish();
  const source = { size: 2 ** 40, read: (offset: number, length: number) => part(header, offset, length) };
  checkCost("the header", () => void assertEquals(parseGguf(source, "m", 0).metadata.keys(), ["k"]));
});

Deno.test("the most tensors and entries that a header may have are read within a second and 64 MB", () => {
  const file = writeGguf({
    metadata: Array.from(
      { length: MAX_GGUF_ENTRIES },
      (_, i) => [`key.${i}`, { type: "string", value: "x".repeat(400) }],
    ),
    tensors: Array.from({ length: MAX_GGUF_TENSORS }, (_, i) => ({
      name: `${i}.`.padEnd(256, "n"),
      shape: [1, 1, 1, 8],
      type: 0,
      data: new Uint8Array(32),
    })),
  });
  checkCost("the header", () => void parseGguf(bytesSource(file), "m", 0));
});

/** A header with a vocabulary of pieces and scores, and no tensors. */
function pieces(): Uint8Array<ArrayBuffer> {
  const tokens = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    ..."abcdefgh\u2581",
    "ab",
    "cd",
    "abcd",
    "\u2581a",
    "\n\n",
  ];
  const list = (of: "string" | "f32" | "i32", value: unknown[]): Value => ({ type: "array", of, value });
  const bytes = writeGguf({
    metadata: [
      ["general.architecture", { type: "string", value: "gemma3" }],
      ["tokenizer.ggml.model", { type: "string", value: "llama" }],
      ["tokenizer.ggml.tokens", list("string", tokens)],
      ["tokenizer.ggml.scores", list("f32", tokens.map((_, i) => -i))],
      [
        "tokenizer.ggml.token_type",
        list("i32", tokens.map((text, i) => i < 4 ? 3 : text === "\n\n" ? 4 : 1)),
      ],
      ["tokenizer.ggml.bos_token_id", { type: "u32", value: 2 }],
      ["tokenizer.ggml.eos_token_id", { type: "u32", value: 1 }],
      ["tokenizer.ggml.add_space_prefix", { type: "bool", value: false }],
    ],
  });
  assertEquals(
    vocabularyFromGguf(parseGguf(bytesSource(bytes), "m", 0).metadata, bytesSource(bytes))?.eos,
    1,
  );
  return bytes;
}
