import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { InvalidArgument, TokenizerError, UnknownOption } from "../../src/errors.ts";
import { loadTokenizer } from "../../src/tokenizer/tokenizer.ts";
import { randomIntegers } from "./random.ts";
import goldens from "../fixtures/tokenizer/tiny.json" with { type: "json" };

const tiny = await loadTokenizer(new URL("../../examples/tiny/", import.meta.url));

Deno.test("the small model's golden prompts have the reference's ids", () => {
  const media = ["<|image|>", "<|audio|>"].map((token) => tiny.id(token)!);
  for (const { name, prompt, input_ids } of goldens) {
    // A media placeholder stands once in the prompt and once per soft token in the ids; its end marker is added too.
    const ends = ["<image|>", "<audio|>", "<|image>", "<|audio>"].map((token) => tiny.id(token)!);
    const reference = input_ids.filter((id, i) =>
      !ends.includes(id) && !(media.includes(id) && input_ids[i - 1] === id)
    );
    assertEquals(tiny.encode(prompt, { special: true }), reference, name);
  }
});

Deno.test("the small model's golden outputs decode to the reference's text", () => {
  for (const { name, output_ids, output_text, output_text_clean } of goldens) {
    assertEquals(tiny.decode(output_ids), output_text, name);
    assertEquals(tiny.decode(output_ids, { skipSpecial: true }), output_text_clean, name);
    const stream = tiny.stream();
    assertEquals(output_ids.map((id) => stream.push(id)).join("") + stream.flush(), output_text, name);
  }
});

Deno.test("the stop set is the union of the tokenizer's end token and the generation config's", () => {
  assertEquals([...tiny.stops].sort((a, b) => a - b), [1, 9, 16]);
  assertEquals([tiny.bos, tiny.eos, tiny.vocabularySize], [2, 1, 1536]);
});

Deno.test("segments give control tokens by text and by id, and text between them as plain text", () => {
  const prompt = "<|turn>user\n<turn|><bos>Hi<turn|>\n";
  const ids = tiny.encodeSegments([
    { control: "<|turn>" },
    { text: "user\n<tu" },
    { text: "rn|><bos>Hi" },
    { control: tiny.id("<turn|>")! },
    { text: "\n" },
  ]);
  assertEquals(tiny.decode(ids), prompt);
  assertEquals(ids.filter((id) => tiny.isControl(id)).map((id) => tiny.token(id)), ["<|turn>", "<turn|>"]);
  assertEquals(tiny.encodeSegments([{ text: "user\n<turn|>" }]), tiny.encode("user\n<turn|>"));
  assertEquals(tiny.encodeSegments([]), []);
});

Deno.test("a segment that names no control token is a typed error", () => {
  for (const control of ["<end_of_turn>", "a", tiny.id("a")!, -1, 99999]) {
    assertThrows(() => tiny.encodeSegments([{ control }]), TokenizerError, "not a control token");
  }
});

Deno.test("lone surrogates count as U+FFFD and pairs survive", () => {
  assertEquals(tiny.encode("a\ud83d"), tiny.encode("a\ufffd"));
  assertEquals(tiny.encode("\ude00\ud83d"), tiny.encode("\ufffd\ufffd"));
  assertEquals(tiny.decode(tiny.encode("\ud83d\ude00")), "😀");
});

Deno.test("any permutation of marker fragments stays free of control tokens in plain text", () => {
  const random = randomIntegers(31);
  const fragments = [
    "<",
    "|",
    ">",
    "turn",
    "<|",
    "|>",
    "<|turn",
    "turn|>",
    "<bos>",
    "\u2581",
    " ",
    "<0x3C>",
    '<|"|>',
  ];
  for (let round = 0; round < 2000; round++) {
    const text = Array.from({ length: 1 + random(12) }, () => fragments[random(fragments.length)]).join("");
    const ids = tiny.encode(text);
    assert(ids.every((id) => !tiny.isControl(id)), text);
    assertEquals(tiny.decode(ids), text.replaceAll("\u2581", " "));
  }
});

Deno.test("arguments of the wrong kind are typed errors that name them", async () => {
  for (const text of [undefined, null, 5, {}, ["a"]]) {
    assertThrows(() => tiny.encode(text as never), InvalidArgument, "text to encode");
  }
  for (const ids of [undefined, null, 5, "12", { length: 1 }]) {
    assertThrows(() => tiny.decode(ids as never), InvalidArgument, "ids to decode");
  }
  for (const id of ["5", "__proto__", "length", null, 1.5, NaN, -1]) {
    assertThrows(() => tiny.decode([id as never]), TokenizerError);
    assertThrows(() => tiny.stream().push(id as never), TokenizerError);
  }
  for (const options of [null, 5, { special: "yes" }]) {
    assertThrows(() => tiny.encode("x", options as never), InvalidArgument);
  }
  assertThrows(() => tiny.encode("x", { skipSpecial: true } as never), UnknownOption, "skipSpecial");
  assertThrows(() => tiny.decode([5], { special: true } as never), UnknownOption, "special");
  assertThrows(() => tiny.stream({ skipSpecial: 1 } as never), InvalidArgument);
  for (const folder of ["", null, 5]) {
    await assertRejects(() => loadTokenizer(folder as never), InvalidArgument, "folder");
  }
});
