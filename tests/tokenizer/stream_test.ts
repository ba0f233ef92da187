import { assertEquals, assertThrows } from "@std/assert";
import { TokenizerError } from "../../src/errors.ts";
import { Utf8Assembler } from "../../src/tokenizer/stream.ts";
import { loadTokenizer } from "../../src/tokenizer/tokenizer.ts";
import { randomIntegers, randomText } from "./random.ts";

const tiny = await loadTokenizer(new URL("../../examples/tiny/", import.meta.url));
const byteId = (byte: number) => tiny.id(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`)!;

/** Text of bytes that arrive one at a time. */
function assemble(bytes: Iterable<number>): string {
  const assembler = new Utf8Assembler();
  let text = "";
  for (const byte of bytes) text += assembler.push(byte);
  return text + assembler.flush();
}

Deno.test("valid UTF-8 arrives unchanged, each character with its last byte", () => {
  const random = randomIntegers(21);
  const text = randomText(random, 2000) + "\uFEFF\u0000\u{10FFFF}\uD7FF\uE000";
  assertEquals(assemble(new TextEncoder().encode(text)), text);
  const assembler = new Utf8Assembler();
  assertEquals([0xf0, 0x9f, 0x91, 0x8b].map((byte) => assembler.push(byte)), ["", "", "", "👋"]);
});

Deno.test("each byte that is part of no character becomes one U+FFFD and its neighbours survive", () => {
  const cases: [number[], string][] = [
    [[0x80], "\uFFFD"],
    [[0xc0, 0x80], "\uFFFD\uFFFD"], // overlong
    [[0xe0, 0x80, 0x80], "\uFFFD\uFFFD\uFFFD"],
    [[0xed, 0xa0, 0x80], "\uFFFD\uFFFD\uFFFD"], // surrogate
    [[0xf4, 0x90, 0x80, 0x80], "\uFFFD\uFFFD\uFFFD\uFFFD"], // beyond U+10FFFF
    [[0xff, 0x41], "\uFFFDA"],
    [[0xe2, 0x82, 0x41], "\uFFFD\uFFFDA"],
    [[0xe2, 0x82, 0xe2, 0x82, 0xac], "\uFFFD\uFFFD€"],
    [[0xf0, 0x9f, 0x91], "\uFFFD\uFFFD\uFFFD"], // unfinished
    [[0xe2, 0x82, 0xac, 0xf0], "€\uFFFD"],
  ];
  for (const [bytes, text] of cases) {
    assertEquals(assemble(bytes), text, bytes.join(" "));
    assertEquals(tiny.decode(bytes.map(byteId)), text, bytes.join(" "));
  }
});

Deno.test("a stream holds text that ends in U+FFFD until more follows or it is flushed", () => {
  const stream = tiny.stream();
  assertEquals(stream.push(byteId(0x80)), "");
  assertEquals(stream.push(tiny.id("a")!), "\uFFFDa");
  assertEquals(stream.push(byteId(0xe2)), "");
  assertEquals(stream.flush(), "\uFFFD");
  assertEquals(stream.push(tiny.id("a")!), "a");
});

Deno.test("skipped control tokens leave no trace in a stream, even inside a character", () => {
  const [first, second] = [byteId(0xc3), byteId(0xa9)];
  const ids = [first, tiny.id("<turn|>")!, second];
  assertEquals(tiny.decode(ids, { skipSpecial: true }), "é");
  const stream = tiny.stream({ skipSpecial: true });
  assertEquals(ids.map((id) => stream.push(id)), ["", "", "é"]);
  assertEquals(tiny.decode(ids), "\uFFFD<turn|>\uFFFD");
});

Deno.test("ids outside the vocabulary are typed errors in decode, stream and token", () => {
  for (const id of [-1, tiny.vocabularySize, 1.5, NaN, 2 ** 40]) {
    assertThrows(() => tiny.decode([id]), TokenizerError, "outside the vocabulary");
    assertThrows(() => tiny.stream().push(id), TokenizerError, String(id));
    assertThrows(() => tiny.token(id), TokenizerError);
    assertEquals(tiny.isControl(id), false);
  }
});
