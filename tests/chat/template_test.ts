import { assert, assertEquals, assertThrows } from "@std/assert";
import { InvalidArgument, TemplateError, UnknownOption } from "../../src/errors.ts";
import type { Message } from "../../src/chat/messages.ts";
import { ChatTemplate, chatTemplateSource } from "../../src/chat/template.ts";
import { gemmaTemplate, template, tinyTemplate } from "./support.ts";
import { cpuMilliseconds } from "../support/cpu_time.ts";

const HI: Message[] = [{ role: "user", content: "Hi" }];

/** Output of a template for one user message with extra fields. */
function output(source: string, fields: Record<string, unknown> = {}): string {
  return template(source).render([{ role: "user", content: "Hi", ...fields }]).text;
}

function failure(source: string, limits = {}, fields: Record<string, unknown> = {}): TemplateError {
  return assertThrows(
    () => template(source, limits).render([{ role: "user", content: "Hi", ...fields }]),
    TemplateError,
  );
}

Deno.test("a template that loops, recurses or builds without end is stopped with a typed error", () => {
  const endless: [string, string][] = [
    ["{% for a in range(999999) %}{% for b in range(999999) %}{% endfor %}{% endfor %}", "steps"],
    ["{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "depth"],
    [`{{ ${"(".repeat(20000)}1${")".repeat(20000)} }}`, "nested too deeply"],
    [`${"{% if true %}".repeat(3000)}${"{% endif %}".repeat(3000)}`, "nested"],
    [
      "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
      "outputLength",
    ],
    [
      "{% set n = namespace(s=['x']) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
      "listLength",
    ],
    [
      "{% set n = namespace(s=['x']) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
      "steps",
    ],
    [
      "{% set n = namespace(s=['x']) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}",
      "steps",
    ],
    ["{{ range(1000000000) }}", "listLength"],
    [
      "{% set n = namespace(s='x') %}{% for i in range(22) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s | replace('x', n.s) }}",
      "outputLength",
    ],
    [
      "{% for i in range(200) %}{{ 'x' * 1 if false else 'y' | indent(width=1000000, first=true) }}{% endfor %}",
      "outputLength",
    ],
    ["{{ ['a', 'b'] | join('x' | indent(999999999, true)) }}", "outputLength"],
  ];
  for (const [source, limit] of endless) {
    const start = cpuMilliseconds();
    const error = failure(source, { steps: 2_000_000 });
    assertEquals(error.code, "template_limit", `${source.slice(0, 80)}: ${error.message}`);
    assert(error.message.includes(limit), `${source.slice(0, 80)}: ${error.message}`);
    assert(cpuMilliseconds() - start < 5000, source.slice(0, 80));
  }
});

Deno.test("a text that is gone through character by character may have no more of them than a list items", () => {
  const content = "x".repeat(101);
  for (
    const source of [
      "{% for c in messages[0].content %}{{ c }}{% endfor %}",
      "{% for c in messages[0].content if c %}{{ c }}{% endfor %}",
      ...["list", "first", "last", "sort", "join", 'map("upper") | list'].map((filter) =>
        `{{ messages[0].content | ${filter} }}`
      ),
    ]
  ) {
    const error = failure(source, { listLength: 100 }, { content });
    assertEquals(error.code, "template_limit", source);
    assert(error.message.includes("listLength"), error.message);
    template(source, { listLength: 101 }).render([{ role: "user", content }]);
  }
});

Deno.test("a template that is too large, or pads without end, is refused before it is parsed", () => {
  assertEquals(failure("x".repeat(300_000)).code, "template_limit");
  assertEquals(failure(" ".repeat(200_000)).code, "template_limit");
});

Deno.test("an unknown filter, a raised exception and a syntax error are typed and name the line", () => {
  const unknown = failure(
    "a\n{# {% two #}\n{{ '%}' }}\n{% if true %}\n{{ messages | frobnicate }}\n{% endif %}",
  );
  assertEquals(unknown.code, "unknown_filter");
  assert(unknown.message.includes("line 5") && unknown.message.includes('"frobnicate"'), unknown.message);
  const withArguments = failure("{{ 'x' | frobnicate(1) }}");
  assertEquals(withArguments.code, "unknown_filter");
  const raised = failure(
    "{% macro m() %}\n{{ raise_exception('Roles must alternate: ' ~ messages[0].role) }}\n{% endmacro %}\n{{ m() }}",
  );
  assertEquals(raised.code, "template_raised");
  assert(
    raised.message.includes("line 2") && raised.message.includes("Roles must alternate: user"),
    raised.message,
  );
  const syntax = failure("x\n\n{% if messages %}\n{% for %}\n");
  assertEquals(syntax.code, "template_failed");
  assert(syntax.message.includes("line 4"), syntax.message);
  for (const broken of ["{{", "{% if x %}", "{% endfor %}", "{{ 'a }}", "{# a", "{% wat %}", "{% break %}"]) {
    assertEquals(failure(broken).code, "template_failed", broken);
  }
});

Deno.test("values print as Python prints them", () => {
  const all = "{{ messages[0].v }}";
  const printed: [unknown, string][] = [
    [null, "None"],
    [true, "True"],
    [1, "1"],
    [-0.5, "-0.5"],
    [1e-7, "1e-07"],
    [0.0001, "0.0001"],
    [1.5e300, "1.5e+300"],
    [12345678901234, "12345678901234"],
    [[1, "it's", null, { a: [true] }], "[1, \"it's\", None, {'a': [True]}]"],
    ["plain <b>", "plain <b>"],
    // What Python's `repr` does not print: format characters, separators, private use; marks of our own are none of them.
    [["a\uFEFF\u2028\u3000b é\u{1F600}"], "['a\\ufeff\\u2028\\u3000b é\u{1F600}']"],
    [["\u{E0001}\u{F0000}\xAD\x7F"], "['\\U000e0001\\U000f0000\\xad\\x7f']"],
    [["<a\uF8E0\uF8E1>"], "['<a\\uf8e0\\uf8e1>']"],
  ];
  for (const [value, expected] of printed) assertEquals(output(all, { v: value }), expected);
  assertEquals(
    output("{{ 2.0 }} {{ 7 / 2 }} {{ (1, 'a') }} {{ missing }}|"),
    "2.0 3.5 (1, 'a') |",
  );
  assertEquals(
    output("{{ true and none }} {{ '1' == 1 }} {{ 1 == true }} {{ [1] == [1] }}"),
    "None False True True",
  );
  assertEquals(output("{{ 'a' ~ none ~ 1.0 ~ missing ~ [1] }}"), "aNone1.0[1]");
});

Deno.test("filters and string methods follow Python and Jinja", () => {
  const cases: [string, string][] = [
    ["{{ missing | upper }}|{{ none | upper }}|{{ ['a'] | upper }}", "|NONE|['A']"],
    ["{{ '\u001c\u0085 x \uFEFF' | trim | length }}", "3"],
    ["{{ ' x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'ab'.rstrip('b') }}", "x|a|a"],
    ["{{ ['b', 'A', 'c'] | sort | join(', ') }}", "A, b, c"],
    ["{{ {'b': 1, 'A': 2} | dictsort }}", "[('A', 2), ('b', 1)]"],
    ["{{ [{'n': 2}, {'n': 1}] | map(attribute='n') | list }}", "[2, 1]"],
    ["{{ ['a', 'b'] | map('upper') | join }}", "AB"],
    ["{{ none | map('upper') | list }}{{ 0 | map(attribute='n') | list }}", "[][]"],
    ["{{ missing | default('d') }}{{ '' | default('e', true) }}{{ missing | default }}", "de"],
    [
      "{{ {'a': [1, 2.5, null, 'é<']} | tojson if false else {'a': 'é<'} | tojson(indent=2) }}",
      '{\n  "a": "é<"\n}',
    ],
    ["{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": "\\u00e9", "b": 1}'],
    ["{{ 'aXbX' | replace('X', 'yy', 1) }} {{ 'ab' | replace('', '-') }}", "ayybX -a-b-"],
    ["{{ 'e\u{1F600}' | length }} {{ missing | length }} {{ [] | first }}|", "2 0 |"],
    ["{% for c in 'ab' %}{{ loop.index }}{{ c }}{% endfor %}", "1a2b"],
    ["{% for x in missing %}x{% else %}none{% endfor %}", "none"],
    ["{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"],
    [
      "{% for x in [1, 2, 3, 4] if x != 2 %}{{ x }}{% if x == 3 %}!{% break %}{% endif %},{% endfor %}",
      "1,3!",
    ],
    ["{% for x in [1, 2] %}{% if x == 2 %}{{ y }}{% endif %}{% set y = x %}{% endfor %}|", "|"],
    [
      "{{ loop is defined }}{% for x in [1, 2] %}{{ loop.previtem is defined }}{% endfor %}",
      "FalseFalseTrue",
    ],
    ["{{ range(3) }}{{ range(3, 0, -1) }}{{ range(2, 5) | length }}", "[0, 1, 2][3, 2, 1]3"],
    [
      "{{ missing in ['a'] }} {{ none in [none] }} {{ 'a' in missing }} {{ 'a' in 'cat' }}",
      "False True False True",
    ],
  ];
  for (const [source, expected] of cases) assertEquals(output(source), expected, source);
});

Deno.test("tojson of caller text gives back the caller's characters", () => {
  const text = 'a<|turn>"\uF8E0\uF8E1é\n';
  assertEquals(output("{{ messages[0].v | tojson }}", { v: text }), JSON.stringify(text));
  const ascii = output("{{ messages[0].v | tojson(ensure_ascii=true) }}", { v: text });
  assertEquals(ascii, '"a<|turn>\\"\\uf8e0\\uf8e1\\u00e9\\n"');
});

Deno.test("strftime_now prints English names whatever the locale", () => {
  const chat = new ChatTemplate("{{ strftime_now('%d %B %Y, %a %H:%M:%S %p %j %% %Q') }}", {
    controlTokens: new Map(),
    now: () => new Date(2025, 2, 9, 15, 4, 5),
  });
  assertEquals(chat.render(HI).text, "09 March 2025, Sun 15:04:05 PM 068 % %Q");
});

Deno.test("a template cannot see or change anything outside its variables", () => {
  for (const name of ["Deno", "globalThis", "process", "constructor", "__proto__", "toString"]) {
    assertEquals(output(`{{ ${name} is defined }}{{ messages.${name} is defined }}`), "FalseFalse", name);
  }
  assertEquals(output("{{ messages[0]['__proto__'] }}", JSON.parse('{"__proto__": "own"}')), "own");
});

Deno.test("messages of the wrong shape are typed errors that name the message", async () => {
  const chat = await gemmaTemplate("updated");
  const loop: Record<string, unknown> = {};
  loop.self = loop;
  const call = { id: "c1", name: "f", arguments: {} };
  const wrong: [unknown, string][] = [
    [[], "no messages"],
    ["Hi", "no messages"],
    [[{ role: "robot", content: "x" }], '"robot"'],
    [[{ content: "x" }], "undefined"],
    [[null], "Message 0"],
    [new Array(2), "Message 0"], // holes
    [[...HI, , ...HI], "Message 1"],
    [[{ role: "user", content: [{ type: "text", text: "a" }, ,] }], "part 1"],
    [[{ role: "user", content: "x", extra: [1, ,] }], "messages[0].extra[1]"],
    [[{ role: "user" }], "no content"],
    [[{ role: "user", content: null }], "no content"],
    [[{ role: "user", content: 5 }], "content is 5"],
    [[{ role: "user", content: [{ type: "smell" }] }], '"smell"'],
    [
      [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }],
      '{type: "image", image: …}',
    ],
    [[{ role: "user", content: [{ type: "input_audio" }] }], '{type: "audio", audio: …}'],
    [[{ role: "user", content: [{ type: "text" }] }], "text of part 0"],
    [[{ role: "user", content: "x", extra: () => 1 }], "messages[0].extra"],
    [[{ role: "user", content: "x", extra: NaN }], "NaN"],
    [[{ role: "user", content: "x", extra: loop }], "levels deep"],
    [[{ role: "user", content: "x", toolCalls: [call] }], "Only assistant"],
    [[{ role: "assistant", toolCalls: [call], tool_calls: [] }], "both"],
    [[{ role: "assistant", tool_calls: [{ function: {} }] }], "no function name"],
    [[{ role: "assistant", toolCalls: [{ ...call, arguments: [1] }] }], "neither a mapping"],
    [[{ role: "tool", content: "x" }], "no assistant message with tool calls"],
    [[{ role: "assistant", toolCalls: [call] }, { role: "tool", toolCallId: "zz", content: "x" }], '"zz"'],
  ];
  for (const [messages, part] of wrong) {
    assertThrows(() => chat.render(messages as Message[]), InvalidArgument, part);
  }
  const tools = [{ type: "function", function: { name: "" } }];
  assertThrows(() => chat.render(HI, { tools: tools as never }), InvalidArgument, "no name");
  assertThrows(() => chat.render(HI, { tools: new Array(1) }), InvalidArgument, "Tool 0");
  for (const properties of ["x", [1], 5]) {
    const parameters = { type: "object", properties };
    const odd = [{ type: "function" as const, function: { name: "f", parameters } }];
    assertThrows(() => chat.render(HI, { tools: odd }), InvalidArgument, 'Tool "f": parameters.properties');
  }
  assertThrows(() => chat.render(HI, { enableThinking: true } as never), UnknownOption, "enableThinking");
});

Deno.test("a result without id or name belongs to the call at its place", async () => {
  const calls = [{ id: "a", name: "f", arguments: {} }, { id: "b", name: "g", arguments: {} }];
  const { text } = (await gemmaTemplate("updated")).render([
    ...HI,
    { role: "assistant", toolCalls: calls },
    { role: "tool", content: "one" },
    { role: "tool", content: "two" },
  ]);
  assert(
    text.includes('response:f{value:<|"|>one<|"|>}') && text.includes('response:g{value:<|"|>two<|"|>}'),
    text,
  );
});

Deno.test("arguments that are not JSON are rendered as text, with a warning", async () => {
  const { warnings } = (await gemmaTemplate("updated")).render([
    ...HI,
    { role: "assistant", tool_calls: [{ id: "a", function: { name: "f", arguments: "{broken" } }] },
  ]);
  assertEquals(warnings.map((warning) => warning.code), ["tool_arguments_not_json"]);
});

Deno.test("a field that the template does not name is a warning, and one that it reads is none", async () => {
  const gemma = await gemmaTemplate("updated");
  const warned = (message: Record<string, unknown>) =>
    gemma.render([{ role: "user", content: "Hi", ...message }]).warnings;
  assertEquals(warned({ images: ["a.png"] }), [{
    code: "field_ignored",
    message: 'Message 0: its field "images" is ignored, since the chat template names no such field.',
  }]);
  const filledIn = { refusal: null, annotations: [], audio: null, function_call: undefined, note: "" };
  assertEquals(warned(filledIn), []);
  assertEquals(warned({ content: [{ type: "text", text: "Hi", cache_control: null }] }), []);
  const parts = [{ type: "text", text: "Hi" }, { type: "text", text: "there", image: "a.png" }];
  assertEquals(warned({ content: parts }).map(({ message }) => message.slice(0, 39)), [
    'Message 0, part 1: its field "image" is',
  ]);
  const reads = template("{{ messages[0].mood }}{{ messages[0]['place'] }}");
  const { text, warnings } = reads.render([{
    role: "user",
    content: "",
    mood: "calm",
    place: "here",
    at: 9,
  }]);
  assertEquals([text, warnings.length], ["calmhere", 1]);
});

Deno.test("R31: media in the place of a field are a warning, also where the template compares parts with that word", async () => {
  for (const chat of [await gemmaTemplate("updated"), await gemmaTemplate("launch"), await tinyTemplate()]) {
    for (const field of ["image", "audio", "video", "images", "input_audio", "image_url"]) {
      const { text, warnings } = chat.render([{ role: "user", content: "Listen.", [field]: "clip" }]);
      assert(!text.includes("clip"));
      assertEquals(warnings.map(({ code, message }) => [code, message.slice(0, 22 + field.length)]), [
        ["field_ignored", `Message 0: its field "${field}`],
      ]);
    }
  }
  const reads = [
    "{{ messages[0].audio }}",
    "{{ messages[0]['audio'] }}",
    "{{ messages[0].get('audio', '') }}",
    "{{ (messages | selectattr('audio') | list | first).content }}",
    "{{ messages | map(attribute='audio') | join }}",
  ];
  for (const source of reads) {
    assertEquals(template(source).render([{ role: "user", content: "a", audio: "b" }]).warnings, [], source);
  }
});

Deno.test("R11: parts of a system message are the template's to put together, where it goes through them", () => {
  const system: Message = {
    role: "system",
    content: [{ type: "text", text: " Part one." }, { type: "text", text: "Part two." }],
  };
  const messages: Message[] = [system, ...HI];
  const [first, rest] = ["{% set first = messages[0]['content'] %}", "{{ messages[1].content }}"];
  // As the template that Gemma 4's repositories have since July 2026.
  const goesThrough = "{% if first is string %}{{ first | trim }}{% else %}" +
    "{% for item in first %}{{ item['text'] | trim + ' ' }}{% endfor %}{% endif %}";
  assertEquals(template(first + goesThrough + rest).render(messages).text, "Part one. Part two. Hi");
  const printed = template(first + "{{ first | trim }}" + rest); // a list in Python's spelling
  assertEquals(printed.render(messages).text, "Part one.Part two.Hi");
  const firstAlone = template(first + "{{ first if first is string else first[0]['text'] }}" + rest);
  assertEquals(firstAlone.render(messages).text, " Part one.Part two.Hi");
  const raises = template(
    first + "{% if first is not string %}{{ raise_exception('no parts') }}{% endif %}" + rest,
  );
  assertEquals(raises.render(messages).text, "Hi");
  const developer = template(first + goesThrough).render([{ ...system, role: "developer" }]).text;
  assertEquals(developer, "Part one. Part two. ");
});

Deno.test("thinking that the template does not know is a warning", async () => {
  const plain = template("{{ messages[0].content }}");
  assertEquals(plain.render(HI, { thinking: true }).warnings.map(({ code }) => code), ["thinking_ignored"]);
  assertEquals(plain.render(HI, { thinking: false }).warnings, []);
  assertEquals((await gemmaTemplate("updated")).render(HI, { thinking: true }).warnings, []);
});

Deno.test("the checkpoint's template comes from its own file, a text or a named list", () => {
  assertEquals(chatTemplateSource({ jinja: "J", tokenizerConfig: { chat_template: "C" } }), "J");
  assertEquals(chatTemplateSource({ tokenizerConfig: { chat_template: "C" } }), "C");
  const list = [{ name: "default", template: "D" }, { name: "tool_use", template: "T" }];
  assertEquals(chatTemplateSource({ tokenizerConfig: { chat_template: list } }), "D");
  assertEquals(chatTemplateSource({ tokenizerConfig: { chat_template: list } }, "tool_use"), "T");
  assertEquals(chatTemplateSource({ tokenizerConfig: {} }), undefined);
  assertThrows(
    () => chatTemplateSource({ tokenizerConfig: { chat_template: [] } }),
    TemplateError,
    'named "default"',
  );
});

Deno.test("a thousand messages render within the default limits", async () => {
  const messages = Array.from({ length: 1000 }, (_, i): Message => ({
    role: i % 2 === 0 ? "user" : "assistant",
    content: `message ${i}`,
  }));
  const { text } = (await gemmaTemplate("updated")).render(messages);
  assertEquals(text.split("<|turn>").length, 1002);
});
