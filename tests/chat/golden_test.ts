import { assert, assertEquals, assertThrows } from "@std/assert";
import { InvalidArgument, TemplateError } from "../../src/errors.ts";
import { gemma4 } from "../tokenizer/real.ts";
import { fixtures, gemmaTemplate, gemmaTokens, tinyCases, tinyTemplate, tinyTokenizer } from "./support.ts";

/** Where a documented deviation replaces the reference's text. */
const DEVIATIONS: Record<string, (text: string) => string> = {
  // JSON keeps no difference between 1.0 and 1.
  tool_args_types: (text) => text.replace("f1:1.0", "f1:1"),
  // Text parts are joined, not printed as a Python list.
  system_parts: (text) =>
    text.replace(
      "[{'type': 'text', 'text': 'Part one.'}, {'type': 'text', 'text': 'Part two.'}]",
      "Part one.Part two.",
    ),
};

/** Cases whose ids hold control tokens that came from a user's text. */
const FORGED = new Set(["special_in_user", "tool_args_string"]);

/** Case in which a result of a tool is a mapping, on which one revision fails and which the other leaves out. */
const MAPPING = "tool_roundtrip_mapping";

for (const revision of ["updated", "launch"] as const) {
  Deno.test(`the ${revision} Gemma 4 template renders every golden conversation byte for byte`, async () => {
    const chat = await gemmaTemplate(revision);
    const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(chat.source));
    assertEquals(new Uint8Array(hash).toHex(), fixtures.templates[revision]);
    for (const { name, messages, options, ...texts } of fixtures.cases) {
      if (name === MAPPING) continue;
      const golden = texts[revision] === "same" ? texts.updated : texts[revision];
      const render = () =>
        chat.render(messages, {
          tools: options.tools,
          thinking: options.enable_thinking,
          addGenerationPrompt: options.add_generation_prompt,
        });
      assert(typeof golden === "string", name);
      const expected = DEVIATIONS[name]?.(golden) ?? golden;
      assertEquals(render().text, expected, name);
      const pieces = render().segments.map((segment) =>
        "text" in segment
          ? segment.text
          : [...gemmaTokens.keys()].find((token) => gemmaTokens.get(token) === segment.control)
      );
      assertEquals(pieces.join(""), expected, name);
    }
  });
}

Deno.test("golden conversations have the reference's ids, and no forged control tokens", async () => {
  const tokenizer = await gemma4();
  if (tokenizer === null) return; // the reason is printed
  const chat = await gemmaTemplate("updated");
  let equal = 0;
  for (const { name, messages, options, updated, updated_ids } of fixtures.cases) {
    if (typeof updated !== "string" || updated_ids === undefined || name in DEVIATIONS) continue;
    const { segments } = chat.render(messages, {
      tools: options.tools,
      thinking: options.enable_thinking,
      addGenerationPrompt: options.add_generation_prompt,
    });
    const ids = tokenizer.encodeSegments(segments);
    if (FORGED.has(name)) {
      const controls = (list: number[]) => list.filter((id) => tokenizer.isControl(id)).length;
      assert(controls(ids) < controls(updated_ids), name);
      assertEquals(tokenizer.decode(ids), updated, name);
      continue;
    }
    assertEquals(ids, updated_ids, name);
    equal++;
  }
  assertEquals(equal, fixtures.cases.length - 5); // less two forged, two deviations and one error
});

Deno.test("the small model's template renders its golden prompts byte for byte, with their ids", async () => {
  const chat = await tinyTemplate();
  const tokenizer = await tinyTokenizer();
  let withIds = 0;
  for (const { name, messages, tools, enable_thinking, prompt, input_ids } of tinyCases) {
    const { text, segments, media } = chat.render(messages, {
      tools: tools ?? undefined,
      thinking: enable_thinking,
    });
    assertEquals(text, prompt, name);
    if (input_ids === undefined) assert(media.length > 0, name);
    else {
      assertEquals(tokenizer.encodeSegments(segments), input_ids, name);
      withIds++;
    }
  }
  assert(withIds >= 8 && withIds < tinyCases.length);
});

Deno.test("the prompt asks for thinking only when told to", async () => {
  const messages = [{ role: "system" as const, content: "Be brief." }, {
    role: "user" as const,
    content: "Hi",
  }];
  for (const chat of [await gemmaTemplate("updated"), await gemmaTemplate("launch"), await tinyTemplate()]) {
    assert(!chat.render(messages).text.includes("<|think|>"));
    assert(!chat.render(messages, { thinking: false }).text.includes("<|think|>"));
    assert(chat.render(messages, { thinking: true }).text.includes("<|think|>"));
  }
});

Deno.test("two rounds of tool calls with empty content stay in one open turn", async () => {
  const call = (id: string) => ({
    id,
    type: "function" as const,
    function: { name: "f", arguments: { a: 1 } },
  });
  const { text } = (await gemmaTemplate("updated")).render([
    { role: "user", content: "go" },
    { role: "assistant", content: null, tool_calls: [call("c1")] },
    { role: "tool", tool_call_id: "c1", content: "one" },
    { role: "assistant", content: "", tool_calls: [call("c2")] },
    { role: "tool", tool_call_id: "c2", content: "two" },
  ]);
  assertEquals(
    text,
    "<bos><|turn>user\ngo<turn|>\n<|turn>model\n" +
      '<|tool_call>call:f{a:1}<tool_call|><|tool_response>response:f{value:<|"|>one<|"|>}<tool_response|>' +
      '<|tool_call>call:f{a:1}<tool_call|><|tool_response>response:f{value:<|"|>two<|"|>}<tool_response|>',
  );
});

Deno.test("calls in this library's shape and in OpenAI's, with mapping or JSON text, render alike", async () => {
  const args = { city: "Paris", days: 2, deep: { list: [1, "x"] } };
  const result = { role: "tool" as const, tool_call_id: "c1", content: "ok" };
  const user = { role: "user" as const, content: "go" };
  const openai = (value: string | typeof args) => ({
    role: "assistant" as const,
    content: null,
    tool_calls: [{ id: "c1", type: "function" as const, function: { name: "f", arguments: value } }],
  });
  const own = { role: "assistant" as const, toolCalls: [{ id: "c1", name: "f", arguments: args }] };
  for (const chat of [await gemmaTemplate("updated"), await gemmaTemplate("launch"), await tinyTemplate()]) {
    const text = chat.render([user, openai(args), result]).text;
    assert(text.includes("call:f{city:"));
    assertEquals(chat.render([user, openai(JSON.stringify(args)), result]).text, text);
    assertEquals(
      chat.render([user, own, { ...result, tool_call_id: undefined, toolCallId: "c1" }]).text,
      text,
    );
    assertEquals(chat.render([user, own, { role: "tool", content: "ok" }]).text, text);
  }
});

Deno.test("R13: a result of a tool that is a mapping is shown as the template shows one in the message with the calls", async () => {
  const { messages: [user, calls, result], options } = fixtures.cases.find(({ name }) => name === MAPPING)!;
  const { content } = result;
  assert(typeof content === "object");
  for (const chat of [await gemmaTemplate("updated"), await gemmaTemplate("launch")]) {
    const legacy = { ...calls, tool_responses: [{ name: "get_weather", response: content }] };
    const { text, warnings } = chat.render([user, calls, result], { tools: options.tools });
    assertEquals(text, chat.render([user, legacy], { tools: options.tools }).text);
    assert(
      text.includes(
        'response:get_weather{list:[1,<|"|>b<|"|>],ok:true,Sky:<|"|>clear<|"|>,temp:21.5}<tool_response|>',
      ),
    );
    assertEquals(warnings, []);
    // Two results, one of them a text, keep their order; texts alone are left as they are.
    const twice = { ...calls, tool_calls: [...calls.tool_calls!, { ...calls.tool_calls![0], id: "c2" }] };
    const second = { role: "tool" as const, tool_call_id: "c2", content: "wet" };
    const both = chat.render([user, twice, result, second, { role: "assistant", content: "So." }]).text;
    const [first, next] = ["clear", "wet"].map((word) => both.indexOf(`<|"|>${word}<|"|>`));
    assert(first > 0 && next > first, both);
    assert(both.endsWith("So.<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"), both);
  }
});

Deno.test("thoughts of the running turn are shown and older channels are stripped, in parts too", async () => {
  const chat = await gemmaTemplate("updated");
  const { text } = chat.render([
    { role: "user", content: "Q1" },
    {
      role: "assistant",
      content: [{ type: "text", text: "<|channel>thought\nse" }, { type: "text", text: "cret<channel|>A1" }],
    },
    { role: "user", content: "Q2" },
    { role: "assistant", thinking: "I call.", toolCalls: [{ id: "x", name: "f", arguments: {} }] },
    { role: "tool", toolCallId: "x", content: "r" },
  ]);
  assert(!text.includes("secret"));
  assert(text.includes("<|turn>model\nA1<turn|>"));
  assert(text.includes("<|channel>thought\nI call.\n<channel|><|tool_call>call:f{}<tool_call|>"));
});

Deno.test("media keep their order, and a template that has no place for one is an error", async () => {
  const image = new Uint8Array([1]);
  const parts = [
    { type: "audio" as const, audio: "a.wav" },
    { type: "text" as const, text: "<|image|>" },
    { type: "image" as const, image },
  ];
  const chat = await gemmaTemplate("updated");
  const { media, segments } = chat.render([{ role: "user", content: parts }]);
  assertEquals(media, [parts[0], parts[2]]);
  assert((media[1] as { image: unknown }).image === image);
  const placeholders = segments.filter((s) =>
    "control" in s && [258880, 258881, 258884].includes(s.control as number)
  );
  assertEquals(placeholders, [{ control: 258881 }, { control: 258880 }]);
  const { ChatTemplate } = await import("../../src/chat/template.ts");
  const textOnly = new ChatTemplate("{{ messages[0].content[0].text }}", { controlTokens: gemmaTokens });
  assertThrows(() => textOnly.render([{ role: "user", content: parts }]), TemplateError, "placeholders");
  assertThrows(
    () => chat.render([{ role: "system", content: [parts[0]] }]),
    InvalidArgument,
    "Put media into user",
  );
});
