import { assert, assertEquals } from "@std/assert";
import { Texts, TextsBuilder } from "../../src/tokenizer/texts.ts";

const TEXTS = ["", "a", "▁the", "😀", "x😀", "\ud83d", "\ude00\ud83d", "a\u0000b", "中文", ""];

Deno.test("texts in typed arrays are the strings that went in, lone surrogates and empty ones too", () => {
  const texts = Texts.of(TEXTS);
  assertEquals([...texts], TEXTS);
  assertEquals(TEXTS.map((_, i) => texts.at(i)), TEXTS);
  for (const outside of [-1, TEXTS.length, NaN]) assertEquals(texts.at(outside), undefined);
  assert(Texts.of(texts) === texts);
});

Deno.test("the first and last code points of texts are those of the strings", () => {
  const texts = Texts.of(TEXTS);
  TEXTS.forEach((text, i) => {
    const points = Array.from(text, (character) => character.codePointAt(0)!);
    assertEquals(texts.firstCodePoint(i), points[0] ?? -1);
    assertEquals(texts.lastCodePoint(i), points.at(-1) ?? -1);
  });
});

Deno.test("texts made of UTF-8 are those that TextDecoder makes, and what it refuses is refused", () => {
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  const check = (bytes: Uint8Array) => {
    let expected: string | undefined;
    try {
      expected = strict.decode(bytes);
    } catch {
      expected = undefined;
    }
    const builder = new TextsBuilder(1, bytes.length);
    const isValid = builder.addUtf8(bytes, 0, bytes.length);
    assertEquals(isValid ? builder.finish().at(0) : undefined, expected, `[${bytes}]`);
  };
  for (const text of TEXTS) check(new TextEncoder().encode(text));
  // Around every border between lengths, surrogates and the last code point, whole and cut.
  for (const point of [0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xe000, 0xfeff, 0xffff, 0x10000, 0x10ffff]) {
    const bytes = new TextEncoder().encode(`a${String.fromCodePoint(point)}b`);
    for (let end = 0; end <= bytes.length; end++) check(bytes.subarray(0, end));
  }
  // All leads with continuations at the borders of what they may be, and none.
  const second = [0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff];
  for (let lead = 0x80; lead < 0x100; lead++) {
    check(Uint8Array.of(lead));
    for (const byte of second) {
      check(Uint8Array.of(lead, byte));
      check(Uint8Array.of(lead, byte, 0x80));
      check(Uint8Array.of(lead, byte, 0xbf, 0x80));
      check(Uint8Array.of(lead, byte, 0x80, 0x41));
    }
  }
});
