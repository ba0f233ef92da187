import { assertEquals, assertRejects, assertStringIncludes, assertThrows } from "@std/assert";
import { bytesSource } from "../support/bytes_source.ts";
import { parseGguf } from "../../src/checkpoint/gguf.ts";
import { CheckpointError, MarkbaseError, TokenizerError } from "../../src/errors.ts";
import { templateFromGguf, vocabularyFromGguf } from "../../src/tokenizer/gguf.ts";
import { loadTokenizer, Tokenizer } from "../../src/tokenizer/tokenizer.ts";
import { type Value, writeGguf } from "../checkpoint/gguf_writer.ts";
import { withFolder } from "../checkpoint/support.ts";
import { randomIntegers } from "./random.ts";

const text = (value: string): Value => ({ type: "string", value });
const u32 = (value: number): Value => ({ type: "u32", value });
const texts = (value: string[]): Value => ({ type: "array", of: "string", value });
const floats = (value: number[]): Value => ({ type: "array", of: "f32", value });
const integers = (value: number[]): Value => ({ type: "array", of: "i32", value });

/** Special tokens and bytes, then pieces in the order of their scores. */
function base(pieces: string[]): { tokens: string[]; types: number[]; scores: number[] } {
  const special = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<image_soft_token>",
    "  ",
  ];
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`);
  return {
    tokens: [...special, ...bytes, ...pieces],
    types: [3, 3, 3, 2, 3, 3, 4, 4, ...bytes.map(() => 6), ...pieces.map(() => 1)],
    scores: [...special.map(() => -1000), ...bytes.map(() => 0), ...pieces.map((_, i) => -i)],
  };
}

type Entries = Record<string, Value | undefined>;

/** A vocabulary of pieces, with some entries replaced or (undefined) left out. */
function entries(pieces: string[], change: Entries = {}): Entries {
  const { tokens, types, scores } = base(pieces);
  return {
    model: text("llama"),
    tokens: texts(tokens),
    token_type: integers(types),
    scores: floats(scores),
    bos_token_id: u32(2),
    eos_token_id: u32(1),
    unknown_token_id: u32(3),
    add_space_prefix: { type: "bool", value: false },
    ...change,
  };
}

function metadataOf(all: Entries, other: [string, Value][] = []) {
  const metadata = Object.entries(all).filter(([, value]) => value !== undefined)
    .map(([key, value]): [string, Value] => [`tokenizer.ggml.${key}`, value!]);
  const source = bytesSource(writeGguf({ metadata: [...metadata, ...other] }));
  return { metadata: parseGguf(source, "m.gguf", 0).metadata, source };
}

function open(all: Entries): Tokenizer {
  const { metadata, source } = metadataOf(all);
  return new Tokenizer(vocabularyFromGguf(metadata, source)!);
}

const PIECES = ["\u2581", ..."abcde", "ab", "bc", "abc", "\u2581a", "cd", "abcd", "de", "dd"];

/** As SentencePiece defines it: again and again the best-scored piece that two neighbours spell, the leftmost first. */
function spell(word: string): string[] {
  const symbols = [...word.replaceAll(" ", "\u2581")];
  for (;;) {
    let best = -1, score = Infinity;
    for (let i = 0; i + 1 < symbols.length; i++) {
      const rank = PIECES.indexOf(symbols[i] + symbols[i + 1]);
      if (rank >= 0 && rank < score) best = i, score = rank;
    }
    if (best < 0) return symbols;
    symbols.splice(best, 2, symbols[best] + symbols[best + 1]);
  }
}

Deno.test("pieces with scores: the best piece that two neighbours spell goes first, the leftmost of equals", () => {
  const tokenizer = open(entries(PIECES));
  const random = randomIntegers(5);
  for (let round = 0; round < 500; round++) {
    const word = Array.from({ length: random(30) }, () => "abcde"[random(5)]).join("");
    assertEquals(tokenizer.encode(word).map((id) => tokenizer.token(id)), spell(word), word);
  }
});

Deno.test("pieces of one score are merged from the left, whatever their ids", () => {
  const pieces = ["x", "y", "yx", "xy"]; // the later one scores the same
  const { tokens, types, scores } = base(pieces);
  scores[scores.length - 1] = scores[scores.length - 2];
  const tokenizer = open({
    ...entries(pieces),
    tokens: texts(tokens),
    token_type: integers(types),
    scores: floats(scores),
  });
  assertEquals(tokenizer.encode("xyx").map((id) => tokenizer.token(id)), ["xy", "x"]);
  assertEquals(tokenizer.encode("yxy").map((id) => tokenizer.token(id)), ["yx", "y"]);
});

Deno.test("user-defined runs of spaces are matched longest first, and characters without a piece become bytes", () => {
  const tokenizer = open(entries(PIECES));
  assertEquals(tokenizer.encode("a   a").map((id) => tokenizer.token(id)), ["a", "\u2581\u2581", "\u2581a"]);
  assertEquals(tokenizer.decode(tokenizer.encode("a   a é 😀")), "a   a é 😀");
  assertEquals(tokenizer.encode("é").map((id) => tokenizer.token(id)), ["<0xC3>", "<0xA9>"]);
});

Deno.test("tokens of the chat format and of media are control tokens although they are marked as user-defined", () => {
  const tokenizer = open(entries(PIECES));
  assertEquals([...tokenizer.controlTokens.keys()], [
    "<pad>",
    "<eos>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<image_soft_token>",
  ]);
  assertEquals(tokenizer.encode("<image_soft_token>").includes(6), false);
  assertEquals(tokenizer.encode("<image_soft_token>", { special: true }), [6]);
});

Deno.test("stop tokens are the ends of sequence, turn and message that the file names", () => {
  const tokenizer = open(entries(PIECES, { eot_token_id: u32(5), eom_token_id: u32(4) }));
  assertEquals([tokenizer.bos, tokenizer.eos, [...tokenizer.stops]], [2, 1, [1, 5, 4]]);
});

Deno.test("ranked merges are read as the file lists them", () => {
  const all = entries(PIECES, { model: text("gemma4"), merges: texts(["b c", "a b", "a bc"]) });
  const tokenizer = open(all);
  assertEquals(tokenizer.encode("abcab").map((id) => tokenizer.token(id)), ["abc", "ab"]);
});

Deno.test("a file without tokens has no vocabulary, and its template is its own", () => {
  const { metadata, source } = metadataOf({}, [["tokenizer.chat_template", text("{{ bos_token }}")]]);
  assertEquals(vocabularyFromGguf(metadata, source), null);
  assertEquals(templateFromGguf(metadata), "{{ bos_token }}");
  assertEquals(templateFromGguf(metadataOf({}).metadata), undefined);
});

Deno.test("loadTokenizer opens the vocabulary inside a file, by its path and its URL", async () => {
  const metadata = Object.entries(entries(PIECES)).map(([key, value]): [string, Value] => [
    `tokenizer.ggml.${key}`,
    value!,
  ]);
  await withFolder({ "m.gguf": writeGguf({ metadata }), "none.gguf": writeGguf({}) }, async (folder) => {
    for (const source of [`${folder}/m.gguf`, new URL(`file://${folder}/m.gguf`)]) {
      assertEquals((await loadTokenizer(source)).encode("abc"), open(entries(PIECES)).encode("abc"));
    }
    const missing = await assertRejects(
      () => loadTokenizer(`${folder}/none.gguf`),
      TokenizerError,
      "no vocabulary",
    );
    assertEquals(missing.code, "tokenizer_missing");
    await assertRejects(() => loadTokenizer(`${folder}/absent.gguf`), TokenizerError, "absent.gguf");
  });
});

Deno.test("a vocabulary whose pieces repeat each other without end is refused before it fills memory", () => {
  const repeats = Array.from({ length: 3000 }, (_, i) => "a".repeat(i + 1));
  const error = assertThrows(() => open(entries(repeats)), TokenizerError, "3000 pieces");
  assertEquals(error.code, "tokenizer_too_large");
});

Deno.test("a vocabulary with megabytes of control tokens is refused", () => {
  const controls = Array.from({ length: 300 }, (_, i) => String(i).repeat(1000));
  const { tokens, types, scores } = base(controls);
  const change = {
    tokens: texts(tokens),
    token_type: integers(types.map((t) => t === 1 ? 3 : t)),
    scores: floats(scores),
  };
  assertThrows(() => open(entries(controls, change)), TokenizerError, "control tokens");
});

const { tokens, types, scores } = base(PIECES);
/** [what is wrong, change, words of the message]. */
const WRONG: [string, Entries, string[]][] = [
  ["another kind of model", { model: text("gpt2") }, ['"gpt2"', "only gemma4 and llama"]],
  ["no kind of model", { model: undefined }, ["tokenizer.ggml.model", "missing"]],
  ["a space put before every text", { add_space_prefix: undefined }, ["add_space_prefix", "true"]],
  ["no types", { token_type: undefined }, ["token_type", "missing"]],
  ["a type less than tokens", { token_type: integers(types.slice(1)) }, [`${types.length - 1} types`]],
  ["an unknown type", { token_type: integers(types.map((type, i) => i === 9 ? 7 : type)) }, [
    "token 9",
    "type 7",
  ]],
  ["types as texts", { token_type: texts(tokens) }, ["token_type", "a list of numbers"]],
  ["no scores", { scores: undefined }, ["scores", "missing"]],
  ["a score less than tokens", { scores: floats(scores.slice(1)) }, [`${scores.length - 1} scores`]],
  ["a score that is no number", { scores: floats(scores.map((s, i) => i === 5 ? NaN : s)) }, [
    "token 5",
    "NaN",
  ]],
  ["an empty control token", { tokens: texts(tokens.map((t, i) => i === 4 ? "" : t)) }, ["empty token 4"]],
  ["an end token beyond its tokens", { eos_token_id: u32(9999) }, ["eos_token_id", "9999"]],
  ["no tokens", { tokens: texts([]), token_type: integers([]), scores: floats([]) }, ["0 tokens"]],
  ["no merges where they are wanted", { model: text("gemma4") }, ["merges", "missing"]],
  ["a merge of unknown tokens", { model: text("gemma4"), merges: texts(["a b", "q r"]) }, ["Merge 1", '"q"']],
  ["a merge without a space", { model: text("gemma4"), merges: texts(["ab"]) }, ["Merge 0", '"ab"']],
];
for (const [what, change, words] of WRONG) {
  Deno.test(`a vocabulary with ${what} is refused by name`, () => {
    const error = assertThrows(() => open(entries(PIECES, change)), MarkbaseError);
    assertEquals(error instanceof TokenizerError || error instanceof CheckpointError, true);
    for (const word of words) assertStringIncludes(error.message, word);
  });
}
