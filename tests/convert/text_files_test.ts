import { assertEquals, assertThrows } from "@std/assert";
import { tokenizerJson } from "../../src/convert/text_files.ts";
import { TokenizerError } from "../../src/errors.ts";
import { vocabularyFromJson } from "../../src/tokenizer/json.ts";
import { Tokenizer } from "../../src/tokenizer/tokenizer.ts";
import type { Vocabulary } from "../../src/tokenizer/vocabulary.ts";
import { TINY } from "../support/models.ts";

const TEXTS = [
  "What is the capital of Norway?",
  "  two  spaces\n\n\nand lines",
  "Grüße, 😊 und \u2028!",
  "<turn|>",
  "",
];

/** The vocabulary after it was written and read. */
function again(vocabulary: Vocabulary): Vocabulary {
  const name = (id: number | undefined) => id === undefined ? undefined : vocabulary.tokens.at(id);
  return vocabularyFromJson(
    JSON.parse(JSON.stringify(tokenizerJson(vocabulary))),
    { bos_token: name(vocabulary.bos), eos_token: name(vocabulary.eos) },
    { eos_token_id: vocabulary.stops },
  );
}

Deno.test("a vocabulary with merges comes back as it was", async () => {
  const read = async (name: string) => JSON.parse(await Deno.readTextFile(`${TINY}/${name}`));
  const vocabulary = vocabularyFromJson(
    await read("tokenizer.json"),
    await read("tokenizer_config.json"),
    await read("generation_config.json"),
  );
  const back = again(vocabulary);
  assertEquals({ ...back, stops: [...back.stops].sort() }, {
    ...vocabulary,
    stops: [...vocabulary.stops].sort(),
  });
  const [a, b] = [new Tokenizer(vocabulary), new Tokenizer(back)];
  for (const text of TEXTS) {
    for (const special of [false, true]) {
      assertEquals(b.encode(text, { special }), a.encode(text, { special }));
    }
  }
});

Deno.test("pieces with scores become merges that encode alike", () => {
  const pieces = ["▁", "a", "b", "c", "ab", "bc", "abc", "▁a", "▁ab", "cab", "▁abc"];
  const scores = [-8, -9, -10, -11, -1, -2, -4, -3, -5, -6, -7];
  const tokens = ["<pad>", "<eos>", "<bos>", "<unk>", ...pieces];
  const vocabulary: Vocabulary = {
    tokens,
    merges: [],
    scores: [0, 0, 0, 0, ...scores],
    pieces: (id) => id > 3,
    added: [0, 1, 2, 3].map((id) => ({ id, text: tokens[id], control: true, normalized: false })),
    unknown: 3,
    fuseUnknown: true,
    byteFallback: false,
    normalize: [{ from: " ", to: "▁" }],
    denormalize: [{ from: "▁", to: " " }],
    bos: 2,
    eos: 1,
    stops: [1],
  };
  const [a, b] = [new Tokenizer(vocabulary), new Tokenizer(again(vocabulary))];
  let state = 1;
  for (let round = 0; round < 300; round++) {
    let text = "";
    for (let i = 0; i < round % 17; i++) text += " abcx"[(state = state * 48271 % 2147483647) % 5];
    assertEquals(b.encode(text), a.encode(text), JSON.stringify(text));
    assertEquals(b.decode(a.encode(text)), a.decode(a.encode(text)));
  }
});

Deno.test("two tokens of one text cannot be written", () => {
  const vocabulary: Vocabulary = {
    tokens: ["a", "a"],
    merges: [],
    added: [],
    fuseUnknown: false,
    byteFallback: false,
    normalize: [],
    denormalize: [],
    stops: [],
  };
  assertThrows(() => tokenizerJson(vocabulary), TokenizerError, '"a"');
});
