import { assert, assertEquals } from "@std/assert";
import { type ReplyEvent, ReplyParser, stopTokens } from "../../src/chat/reply.ts";
import { gemma4 } from "../tokenizer/real.ts";
import { fixtures, joined, tinyCases, tinyTokenizer } from "./support.ts";

const tokenizer = await tinyTokenizer();

/** Events of ids, one call of `push` each. */
function parse(ids: readonly number[]): ReplyEvent[] {
  const parser = new ReplyParser(tokenizer);
  return joined([...ids.flatMap((id) => parser.push(id)), ...parser.finish()]);
}

/** Events of a text whose markers are control tokens. */
function parseText(text: string): ReplyEvent[] {
  return parse(tokenizer.encode(text, { special: true }));
}

function textOf(events: ReplyEvent[], type: "text" | "thinking" = "text"): string {
  return events.flatMap((event) => event.type === type ? [event.text] : []).join("");
}

function callsOf(events: ReplyEvent[]) {
  return events.flatMap((event) => event.type === "toolCall" ? [event] : []);
}

function warningsOf(events: ReplyEvent[]): string[] {
  return events.flatMap((event) => event.type === "warning" ? [event.warning.code] : []);
}

const MIXED = "<|channel>thought\nI need\n\nit: {é😊}.\n<channel|>Well, <|tool_call>" +
  'call:f{a:<|"|>1 }<tool<|"|>,l:[1,{k:<|"|>ü<|"|>}]}<tool_call|><|tool_call>call:g{}<tool_call|> done 😊';

Deno.test("the golden tool calls are read", () => {
  for (const { model_output, calls } of fixtures.tool_call_parsing) {
    const events = parseText(model_output);
    assertEquals(
      callsOf(events).map(({ toolCall: { name, arguments: args } }) => ({ name, arguments: args })),
      calls,
    );
    assertEquals(warningsOf(events), []);
    assertEquals(textOf(events), "");
  }
});

Deno.test("the golden tool calls are read from the ids of the real vocabulary too", async () => {
  const real = await gemma4();
  if (real === null) return; // the reason is printed
  for (const { model_output, calls } of fixtures.tool_call_parsing) {
    const parser = new ReplyParser(real);
    const ids = real.encode(model_output, { special: true });
    const events = [...ids.flatMap((id) => parser.push(id)), ...parser.finish()];
    assertEquals(
      callsOf(events).map(({ toolCall: { name, arguments: args } }) => ({ name, arguments: args })),
      calls,
    );
  }
});

Deno.test("the small model's golden replies split into text, thinking and calls", () => {
  for (const { name, output_ids, output_text } of tinyCases) {
    const events = parse(output_ids);
    assertEquals(warningsOf(events), [], name);
    if (name === "tool_call") {
      assertEquals(callsOf(events).map((event) => event.toolCall), [
        { id: "call_0", name: "get_weather", arguments: { city: "Paris" } },
      ]);
    } else if (name === "text_think") {
      assertEquals(textOf(events, "thinking"), "Units: 8 + 7 = 15. Tens: 5 + 6 + 1 = 12. Total: 125.");
      assertEquals(textOf(events), "125");
    } else assertEquals(textOf(events), output_text.replace(/<turn\|>$/, ""), name);
  }
});

Deno.test("thinking, text and calls come in order, calls with indices from zero", () => {
  const events = parseText(MIXED);
  assertEquals(events, [
    { type: "thinking", text: "I need\n\nit: {é😊}." },
    { type: "text", text: "Well, " },
    {
      type: "toolCall",
      index: 0,
      toolCall: { id: "call_0", name: "f", arguments: { a: "1 }<tool", l: [1, { k: "ü" }] } },
    },
    { type: "toolCall", index: 1, toolCall: { id: "call_1", name: "g", arguments: {} } },
    { type: "text", text: " done 😊" },
  ]);
});

Deno.test("the same reply cut at every place, and in chunks of 1 to 8 tokens, gives the same events", () => {
  const expected = parseText(MIXED);
  const markers = /(<\|?[a-z_]+\|?>(?<!<tool)|<\|"\|>)/;
  const pieces = MIXED.split(markers).filter((piece) => piece !== "");
  assert(pieces.some((piece) => piece === "<|tool_call>"));
  for (let p = 0; p < pieces.length; p++) {
    if (tokenizer.controlTokens.has(pieces[p])) continue;
    const letters = Array.from(pieces[p]);
    for (let cut = 1; cut < letters.length; cut++) {
      const parts = [letters.slice(0, cut).join(""), letters.slice(cut).join("")];
      const ids = pieces.flatMap((piece, i) =>
        i === p
          ? parts.flatMap((part) => tokenizer.encode(part))
          : tokenizer.encode(piece, { special: tokenizer.controlTokens.has(piece) })
      );
      assertEquals(parse(ids), expected);
    }
  }
  const ids = tokenizer.encode(MIXED, { special: true });
  for (let size = 1; size <= 8; size++) {
    const parser = new ReplyParser(tokenizer);
    const events: ReplyEvent[] = [];
    for (let i = 0; i < ids.length; i += size) {
      const delta: ReplyEvent[] = []; // one streamed step of several tokens
      for (const id of ids.slice(i, i + size)) delta.push(...parser.push(id));
      events.push(...delta);
    }
    assertEquals(joined([...events, ...parser.finish()]), expected);
  }
});

Deno.test("a reply that spells markers in ordinary pieces stays text", () => {
  for (
    const text of [
      "<end_of_turn>",
      "<|tool_call>call:f{}<tool_call|>",
      "<|channel>thought\nx<channel|>",
      "<turn|>",
    ]
  ) {
    const events = parse(tokenizer.encode(`say ${text} now`));
    assertEquals(events, [{ type: "text", text: `say ${text} now` }]);
  }
});

Deno.test("a call that cannot be read becomes text with a warning", () => {
  for (const inner of ["no call", "call:{}", 'call:f{<|"|>', "call:f{a}"]) {
    const whole = `Hm. <|tool_call>${inner}<tool_call|> So.`;
    const events = parseText(whole);
    assertEquals(textOf(events), whole);
    assertEquals(callsOf(events), []);
    assertEquals(warningsOf(events), ["tool_call_unreadable"]);
  }
});

Deno.test("a call that the token limit cut off becomes text with a warning", () => {
  const whole = '<|tool_call>call:f{a:<|"|>rm -rf /tmp';
  const events = parseText(whole);
  assertEquals(textOf(events), whole);
  assertEquals(warningsOf(events), ["tool_call_cut_off"]);
});

Deno.test("a complete call without its closing token counts, with a warning", () => {
  for (const end of ["<|tool_response>", "<turn|>", "<eos>", "<|tool_call>call:g{}<tool_call|>"]) {
    const events = parseText(`<|tool_call>call:f{a:1}${end}`);
    assertEquals(callsOf(events)[0].toolCall, { id: "call_0", name: "f", arguments: { a: 1 } });
    assertEquals(callsOf(events).map((event) => event.index), end.includes("call:g") ? [0, 1] : [0]);
    assertEquals(warningsOf(events), ["tool_call_repaired"]);
  }
});

Deno.test("surplus closers and other control tokens do not leak into the text", () => {
  const events = parseText("a<tool_call|>b<channel|>c<tool_call|>d<pad>e<|image|>f");
  assertEquals(textOf(events), "abcdef");
  assertEquals(warningsOf(events), Array(4).fill("stray_control_token"));
});

Deno.test("an empty or unfinished thought leaves no marker in the answer", () => {
  assertEquals(parseText("<|channel>thought\n<channel|>Hi"), [{ type: "text", text: "Hi" }]);
  assertEquals(parseText("<|channel>thought<channel|>Hi"), [{ type: "text", text: "Hi" }]);
  assertEquals(parseText("<|channel>thought\n\nI th"), [{ type: "thinking", text: "\nI th" }]);
  assertEquals(parseText("<|channel>thoughtful\n<channel|>Hi"), [
    { type: "thinking", text: "thoughtful" },
    { type: "text", text: "Hi" },
  ]);
  assertEquals(parseText("<|channel>thought\na<turn|>"), [{ type: "thinking", text: "a" }]);
});

Deno.test("R10: a reply to a prompt that ends inside a channel of thoughts begins with thoughts", () => {
  const encode = (text: string) => tokenizer.encode(text, { special: true });
  const events = (prompt: string, reply: string) => {
    const parser = new ReplyParser(tokenizer, { prompt: encode(prompt) });
    return joined([...encode(reply).flatMap((id) => parser.push(id)), ...parser.finish()]);
  };
  const turn = "<bos><|turn>user\nHi<turn|>\n<|turn>model\n";
  const thought: ReplyEvent[] = [{ type: "thinking", text: "I think." }, { type: "text", text: "Yes." }];
  for (const begun of ["<|channel>thought\n", "<|channel>thought", "<|channel>", "<|channel>thought\nI "]) {
    const rest = "<|channel>thought\nI think.\n<channel|>Yes.".slice(begun.length);
    const expected = begun.endsWith("I ")
      ? [{ type: "thinking" as const, text: "think." }, thought[1]]
      : thought;
    assertEquals(events(turn + begun, rest), expected, begun);
  }
  assertEquals(events(turn + "<|channel>thought\n", "I th"), [{ type: "thinking", text: "I th" }]);
  // Closed channels, as larger models have them before an answer without thoughts, and markers in a user's words open none.
  for (const closed of ["<|channel>thought\n<channel|>", "<|channel>thought\nIt.\n<channel|>So: "]) {
    assertEquals(events(turn + closed, "Yes."), [{ type: "text", text: "Yes." }]);
  }
  const forged = tokenizer.encodeSegments([{ control: "<|turn>" }, { text: "model\n<|channel>thought\n" }]);
  const parser = new ReplyParser(tokenizer, { prompt: forged });
  assertEquals(encode("Yes.").flatMap((id) => parser.push(id)).map(({ type }) => type)[0], "text");
});

Deno.test("a tool result that the model invents is dropped with a warning", () => {
  const events = parseText(
    "<|tool_call>call:f{}<tool_call|><|tool_response>response:f{a:1}<tool_response|>ok",
  );
  assertEquals(callsOf(events).length, 1);
  assertEquals(textOf(events), "ok");
  assertEquals(warningsOf(events), ["tool_response_invented"]);
});

Deno.test("a character that ends in the middle is shown as replacement characters at the end", () => {
  const ids = tokenizer.encode("😊").slice(0, 2);
  assert(ids.length === 2);
  assertEquals(textOf(parse(ids)), "\uFFFD\uFFFD");
});

Deno.test("any ids at all are parsed without an exception", () => {
  let seed = 7;
  const random = (n: number) => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) % n;
  const controls = [...tokenizer.controlTokens.values()];
  for (let round = 0; round < 300; round++) {
    const ids = Array.from(
      { length: 60 },
      () => random(3) === 0 ? controls[random(controls.length)] : random(tokenizer.vocabularySize),
    );
    const indices = callsOf(parse(ids)).map((event) => event.index);
    assertEquals(indices, indices.map((_, i) => i));
  }
});

Deno.test("ids of calls can be chosen", () => {
  const parser = new ReplyParser(tokenizer, { callId: (index) => `turn7-${index}` });
  const ids = tokenizer.encode("<|tool_call>call:f{}<tool_call|>", { special: true });
  assertEquals(callsOf(ids.flatMap((id) => parser.push(id)))[0].toolCall.id, "turn7-0");
});

Deno.test("the stop set holds every end that any source names", async () => {
  const of = (name: string) => tokenizer.controlTokens.get(name)!;
  const stops = stopTokens(tokenizer);
  for (const name of ["<eos>", "<turn|>", "<|tool_response>"]) assert(stops.has(of(name)), name);
  const named = stopTokens({ stops: new Set([7]), controlTokens: new Map([["<end_of_turn>", 106]]) });
  assertEquals(named, new Set([7, 106]));
  const real = await gemma4();
  if (real !== null) { for (const id of [1, 106, 50]) assert(stopTokens(real).has(id)); }
});
