import { assert, assertEquals } from "@std/assert";
import { Texts } from "../../src/tokenizer/texts.ts";

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
