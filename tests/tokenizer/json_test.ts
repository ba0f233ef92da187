import { assertEquals, assertThrows } from "@std/assert";
import { TokenizerError } from "../../src/errors.ts";
import { parseTokenizer } from "../../src/tokenizer/tokenizer.ts";

type Change = (file: ReturnType<typeof sample>) => void;

/** A small tokenizer file of the kind that Gemma 4 has, for tests to damage. */
function sample() {
  const bytes = Array.from(
    { length: 256 },
    (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`,
  );
  const tokens = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<|turn>",
    "<turn|>",
    "<b>",
    ...bytes,
    ..."ab\u2581<>|",
    "ab",
    "\u2581a",
  ];
  // deno-lint-ignore no-explicit-any
  const file: any = {
    version: "1.0",
    added_tokens: ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<b>"].map((content, id) => ({
      id,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: content !== "<b>",
    })),
    normalizer: { type: "Replace", pattern: { String: " " }, content: "\u2581" },
    pre_tokenizer: { type: "Split", pattern: { String: " " }, behavior: "MergedWithPrevious", invert: false },
    decoder: {
      type: "Sequence",
      decoders: [{ type: "Replace", pattern: { String: "\u2581" }, content: " " }, { type: "ByteFallback" }, {
        type: "Fuse",
      }],
    },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: "<unk>",
      fuse_unk: true,
      byte_fallback: true,
      ignore_merges: false,
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
      merges: [["a", "b"], ["\u2581", "a"]],
    },
  };
  return file;
}

function changed(change: Change) {
  const file = sample();
  change(file);
  return file;
}

Deno.test("merges given as strings and as pairs make the same tokenizer", () => {
  const pairs = parseTokenizer(sample());
  const strings = parseTokenizer(changed((file) => file.model.merges = ["a b", "\u2581 a"]));
  for (const text of ["ab a aab", "é  <b>", ""]) assertEquals(strings.encode(text), pairs.encode(text));
  assertEquals(pairs.encode("ab a").map((id) => pairs.token(id)), ["ab", "\u2581a"]);
});

Deno.test("a tokenizer parses alike from an object, text and bytes", () => {
  const text = JSON.stringify(sample());
  const ids = parseTokenizer(sample()).encode("ab é");
  assertEquals(parseTokenizer(text).encode("ab é"), ids);
  assertEquals(parseTokenizer(new TextEncoder().encode(text)).encode("ab é"), ids);
});

Deno.test("ordinary added tokens are matched in plain text, control tokens only when asked for", () => {
  const tokenizer = parseTokenizer(sample());
  assertEquals(tokenizer.encode("<b>a<|turn>").slice(0, 2), [6, tokenizer.id("a")]);
  assertEquals(tokenizer.encode("<b><|turn>").includes(4), false);
  assertEquals(tokenizer.encode("<b><|turn>", { special: true }), [6, 4]);
  assertEquals(tokenizer.isControl(6), false);
});

Deno.test("the longest added token wins among those that start at one place", () => {
  const tokenizer = parseTokenizer(changed((file) => {
    ["<b", "<b><|t"].forEach((content, i) => {
      const id = Object.keys(file.model.vocab).length + i;
      file.added_tokens.push({ id, content, special: false, normalized: false });
    });
  }));
  const texts = (text: string) => tokenizer.encode(text, { special: true }).map((id) => tokenizer.token(id));
  assertEquals(texts("<b"), ["<b"]);
  assertEquals(texts("<b>"), ["<b>"]);
  assertEquals(texts("<b><|turn>"), ["<b><|t", ...texts("urn>")]);
  assertEquals(texts("<b><b><|turn>"), ["<b>", "<b><|t", ...texts("urn>")]);
  assertEquals(texts("<b|<|turn>"), ["<b", "|", "<|turn>"]);
});

Deno.test("an added token marked normalized is matched after spaces were replaced", () => {
  const add = (normalized: boolean) =>
    parseTokenizer(changed((file) => {
      const id = Object.keys(file.model.vocab).length;
      file.added_tokens.push({ id, content: "a b", special: false, normalized });
    }));
  const texts = (normalized: boolean, text: string) => {
    const tokenizer = add(normalized);
    return tokenizer.encode(text).map((id) => tokenizer.token(id));
  };
  assertEquals(texts(true, "a b"), ["a b"]);
  assertEquals(texts(true, "a\u2581b"), ["a b"]);
  assertEquals(texts(false, "a b"), ["a b"]);
  assertEquals(texts(false, "a\u2581b"), ["a", "\u2581", "b"]);
});

Deno.test("tokens that only the tokenizer config calls special become control tokens", () => {
  const forms: object[] = [
    { sot_token: "<b>" },
    { mask_token: { content: "<b>" } },
    { extra_special_tokens: ["<b>"] },
    { extra_special_tokens: { any: "<b>" } },
    { additional_special_tokens: [{ content: "<b>" }] },
    { model_specific_special_tokens: { sot_token: "<b>" } },
    { added_tokens_decoder: { "6": { content: "<b>", special: true } } },
  ];
  for (const config of forms) {
    const tokenizer = parseTokenizer(sample(), config);
    assertEquals(tokenizer.isControl(6), true, JSON.stringify(config));
    assertEquals(tokenizer.encode("<b>").includes(6), false);
    assertEquals(tokenizer.encode("<b>", { special: true }), [6]);
  }
  const plain = parseTokenizer(sample(), {
    added_tokens_decoder: { "6": { content: "<b>", special: false } },
  });
  assertEquals(plain.isControl(6), false);
});

Deno.test("begin, end and stop ids come from every file that names them", () => {
  const ids = (config?: object, generation?: object) => {
    const { bos, eos, stops } = parseTokenizer(sample(), config, generation);
    return [bos, eos, [...stops].sort()];
  };
  assertEquals(ids(), [2, 1, [1]]);
  assertEquals(ids({ bos_token: "<pad>", eos_token: { content: "<turn|>" } }), [0, 5, [5]]);
  assertEquals(ids({ eot_token: "<turn|>" }, { eos_token_id: [1, 4] }), [2, 1, [1, 4, 5]]);
  assertEquals(ids({}, { eos_token_id: 5 }), [2, 1, [1, 5]]);
  assertThrows(() => ids({}, { eos_token_id: [99999] }), TokenizerError, "99999");
});

Deno.test("what this tokenizer does not do is refused by name", () => {
  const cases: [string, Change][] = [
    ["Unigram", (file) => file.model.type = "Unigram"],
    ["dropout", (file) => file.model.dropout = 0.1],
    ["continuing_subword_prefix", (file) => file.model.continuing_subword_prefix = "##"],
    ["end_of_word_suffix", (file) => file.model.end_of_word_suffix = "</w>"],
    ["ignore_merges", (file) => file.model.ignore_merges = true],
    ["NFKC", (file) => file.normalizer = { type: "NFKC" }],
    ["normalizer", (file) => file.normalizer.pattern = { Regex: " +" }],
    ["Sequence inside", (file) => file.decoder.decoders.push({ type: "Sequence", decoders: [] })],
    ["ByteLevel", (file) => file.pre_tokenizer = { type: "ByteLevel" }],
    ["normalization does not remove", (file) => file.pre_tokenizer.pattern.String = "\n"],
    ["normalization does not remove", (file) => file.normalizer = null],
    ["WordPiece", (file) => file.decoder = { type: "WordPiece" }],
    ["byte fallback in only one", (file) => file.decoder.decoders.splice(1, 1)],
    ["byte fallback in only one", (file) => file.model.byte_fallback = false],
    ["lstrip", (file) => file.added_tokens[6].lstrip = true],
    ["rstrip", (file) => file.added_tokens[6].rstrip = true],
    ["single_word", (file) => file.added_tokens[6].single_word = true],
  ];
  for (const [name, change] of cases) {
    const error = assertThrows(() => parseTokenizer(changed(change)), TokenizerError, name);
    assertEquals(error.code, "tokenizer_unsupported", name);
  }
});

Deno.test("damaged files are typed errors that name the damage", () => {
  const cases: [string, Change][] = [
    ["model is missing", (file) => delete file.model],
    ["model is not an object", (file) => file.model = []],
    ["model.vocab is missing", (file) => delete file.model.vocab],
    ["model.vocab is empty", (file) => (file.model.vocab = {}, file.added_tokens = [])],
    ["model.merges is not a list", (file) => file.model.merges = {}],
    ["at 1; a pair", (file) => file.model.merges[1] = ["a"]],
    ["at 0; a pair", (file) => file.model.merges[0] = ["a", 7]],
    ["Merge 1", (file) => file.model.merges[1] = "ab"],
    ["Merge 1", (file) => file.model.merges[1] = "a  b"],
    ['Merge 0 uses "z"', (file) => file.model.merges[0] = ["z", "a"]],
    ['Merge 0 uses "ba"', (file) => file.model.merges[0] = ["b", "a"]],
    ['"ab" the id -1', (file) => file.model.vocab.ab = -1],
    ['"ab" the id 1.5', (file) => file.model.vocab.ab = 1.5],
    ['"ab" the id "7"', (file) => file.model.vocab.ab = "7"],
    ["an id 4000000", (file) => file.model.vocab.ab = 4000000],
    ['"ab" the id 1e+300', (file) => file.model.vocab.ab = 1e300],
    ["gives id 0 to", (file) => file.model.vocab.ab = 0],
    ["empty token", (file) => (delete file.model.vocab.ab, file.model.vocab[""] = 269)],
    ["added_tokens is not a list", (file) => file.added_tokens = {}],
    ["added_tokens[0] is not an object", (file) => file.added_tokens[0] = null],
    ["has an entry", (file) => file.added_tokens[0].content = ""],
    ["has an entry", (file) => file.added_tokens[0].id = null],
    ["jumps to id 5000", (file) => file.added_tokens[6].id = 5000],
    ['gives id 1 to "<x>"', (file) => file.added_tokens[1].content = "<x>"],
    ['gives id 6 to "<b>"', (file) => file.added_tokens.push({ ...file.added_tokens[6] })],
    ["unk_token", (file) => file.model.unk_token = "<none>"],
    ["normalizer", (file) => file.normalizer.content = 5],
    ["decoder", (file) => file.decoder = "Fuse"],
  ];
  for (const [what, change] of cases) {
    assertThrows(() => parseTokenizer(changed(change)), TokenizerError, what);
  }
});

Deno.test("bytes that are not a JSON object are typed errors", () => {
  const whole = JSON.stringify(sample());
  const texts = ["", "[]", "null", "7", whole.slice(0, whole.length / 2), whole + "}", "\ufeff\ufeff{}"];
  for (const text of texts) assertThrows(() => parseTokenizer(text), TokenizerError, "tokenizer.json");
  assertThrows(() => parseTokenizer(Uint8Array.of(0x7b, 0xff, 0x7d)), TokenizerError, "not valid JSON");
});

Deno.test("one byte order mark before a tokenizer file is passed over, in bytes and in text", () => {
  const text = "\ufeff" + JSON.stringify(sample());
  for (const file of [text, new TextEncoder().encode(text)]) {
    assertEquals(parseTokenizer(file).vocabularySize, parseTokenizer(sample()).vocabularySize);
  }
});

Deno.test("any truncation of a tokenizer file is a typed error", () => {
  const bytes = new TextEncoder().encode(JSON.stringify(sample()));
  for (let end = 0; end < bytes.length; end += 97) {
    assertThrows(() => parseTokenizer(bytes.subarray(0, end)), TokenizerError);
  }
});
