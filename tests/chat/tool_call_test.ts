import { assert, assertEquals } from "@std/assert";
import { parseToolCall, QUOTE_TOKEN } from "../../src/chat/tool_call.ts";
import { cpuMilliseconds } from "../support/cpu_time.ts";

/** Reads a text in which every spelled quote counts as a quote token. */
function call(text: string, complete = true) {
  const quotes = [...text.matchAll(new RegExp(RegExp.escape(QUOTE_TOKEN), "g"))].map(({ index }) => index);
  return parseToolCall({ text, quotes }, complete);
}

/** Milliseconds of the fastest of `n` runs, so that a pause of the machine does not count. */
function fastestOf(n: number, run: () => void): number {
  let fastest = Infinity;
  for (let i = 0; i < n; i++) {
    const start = cpuMilliseconds();
    run();
    fastest = Math.min(fastest, cpuMilliseconds() - start);
  }
  return fastest;
}

Deno.test("nested arguments, braces, commas and colons inside texts survive", () => {
  const nested = call('call:edit{path:<|"|>t<|"|>,edits:[{newText:<|"|>a<|"|>,oldText:<|"|>b<|"|>}]}');
  assertEquals(nested, {
    name: "edit",
    arguments: { path: "t", edits: [{ newText: "a", oldText: "b" }] },
    repaired: false,
  });
  const text = '{[a:1, "b"]}:,\n}';
  assertEquals(call(`call:f{t:<|"|>${text}<|"|>,n:-1.5e3,e:<|"|><|"|>,l:[],m:{}}`), {
    name: "f",
    arguments: { t: text, n: -1500, e: "", l: [], m: {} },
    repaired: false,
  });
});

Deno.test("bare values are numbers, booleans and null, and all else is text", () => {
  const parsed = call(
    "call:f{a:true,b:False,c:None,d:null,e:0,f:007,g:12345678901234567890,h:1e999,i:2024-01-02}",
  );
  assertEquals(parsed?.arguments, {
    a: true,
    b: false,
    c: null,
    d: null,
    e: 0,
    f: "007",
    g: "12345678901234567890",
    h: "1e999",
    i: "2024-01-02",
  });
});

Deno.test("malformed calls are repaired where the meaning is plain", () => {
  const args = (text: string) => call(`call:f${text}`)?.arguments;
  assertEquals(args('{query:weather in Tokyo<|"|>}'), { query: "weather in Tokyo" });
  assertEquals(args('{query:Tokyo, Japan<|"|>,days:2}'), { query: "Tokyo, Japan", days: 2 });
  assertEquals(args('{a:foo,b:<|"|>z<|"|>}'), { a: "foo", b: "z" });
  assertEquals(args("{a:[1]]}"), { a: [1] });
  assertEquals(args("{a:[1}"), { a: [1] });
  assertEquals(args('{q:<|"|>Tokyo}'), { q: "Tokyo" });
  assertEquals(args('{"q":"To\\"kyo"}'), { q: 'To"kyo' });
  assertEquals(args('{<|"|>k<|"|>:1}'), { k: 1 });
  assertEquals(args("{a:1"), { a: 1 });
  assertEquals(args('{a:<|"|>x<|"|>junk,b:2}'), { a: "x", b: 2 });
  assertEquals(call("f{a:1}"), { name: "f", arguments: { a: 1 }, repaired: true });
  assertEquals(call("call:f{a:1}}}")?.repaired, true);
});

Deno.test("what is not a call is refused, and so is a call that was cut off", () => {
  for (
    const text of [
      "",
      "call:f",
      "call:{}",
      "hello there {a:1}",
      "call:f{a}",
      "call:f{:1}",
      'call:<|"|>f<|"|>{}',
    ]
  ) {
    assertEquals(call(text), undefined, text);
  }
  for (const text of ["call:f{a:1", 'call:f{a:<|"|>x}', "call:f{a:[1,2", "call:f{a:"]) {
    assertEquals(call(text, false), undefined, text);
  }
  assertEquals(call("call:f{a:1}", false)?.arguments, { a: 1 });
  assertEquals(call(`call:f{a:${"[".repeat(100)}${"]".repeat(100)}}`), undefined);
});

Deno.test("a text that only spells the quote token stays text", () => {
  const text = 'call:f{a:<|"|>say <|"|> twice<|"|>}';
  const quotes = [text.indexOf("<"), text.lastIndexOf("<")];
  assertEquals(parseToolCall({ text, quotes }, true)?.arguments, { a: 'say <|"|> twice' });
});

Deno.test("an argument named __proto__ is an ordinary argument", () => {
  const args = call("call:f{__proto__:{x:1},constructor:2}")!.arguments;
  assertEquals(Object.keys(args), ["__proto__", "constructor"]);
  assertEquals(Object.getPrototypeOf(args), Object.prototype);
  assertEquals(({} as { x?: unknown }).x, undefined);
});

Deno.test("ten thousand mutations of a valid call are each parsed in bounded time without an exception", () => {
  const valid = 'call:edit{path:<|"|>t{},:<|"|>,edits:[{n:1.5,b:true,x:<|"|>a<|"|>},{}],z:{k:{l:[null]}}}';
  const atoms = valid.match(/<\|"\|>|./gs)!;
  const alphabet = [...new Set(atoms), "]", "}", "{", "[", '"', "\n", "\ud800"];
  let seed = 12345;
  const random = (n: number) => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) % n;
  let parsed = 0;
  let slowest = 0;
  for (let i = 0; i < 10_000; i++) {
    const mutant = atoms.slice();
    for (let k = 1 + random(6); k > 0; k--) {
      const at = random(mutant.length);
      const kind = random(4);
      if (kind === 0) mutant.splice(at, 1);
      else if (kind === 1) mutant.splice(at, 0, alphabet[random(alphabet.length)]);
      else if (kind === 2) mutant[at] = alphabet[random(alphabet.length)];
      else mutant.splice(at, 0, ...mutant.slice(at, at + random(20)));
    }
    const text = mutant.join("");
    const complete = random(2) === 0;
    const result = call(text, complete);
    slowest = Math.max(slowest, fastestOf(3, () => call(text, complete)));
    if (result !== undefined) {
      parsed++;
      assert(result.name !== "" && JSON.stringify(result.arguments).length > 1);
    }
  }
  assert(parsed > 1000 && parsed < 10_000, String(parsed));
  assert(slowest < 10, `slowest parse: ${slowest} ms`);
});

Deno.test("the time of a parse grows in proportion to the call", () => {
  const quote = '<|"|>';
  const hostile = [
    (n: number) => `call:f{a:${"[".repeat(60)}${"]".repeat(n)}`,
    (n: number) => `call:f{${"a:b".repeat(n)}`,
    (n: number) => `call:f{${",".repeat(n)}`,
    (n: number) => `call:f{a:${"x".repeat(n)}`,
    (n: number) => `call:f{a:${`x${quote}`.repeat(n)}`,
    (n: number) => `call:f{${`a:${quote},`.repeat(n)}`,
    (n: number) => `call:f{a:[${`"x,`.repeat(n)}`,
    (n: number) => `call:f{a:${quote}${"}".repeat(n)}`,
    (n: number) => `call:f{${"k ".repeat(n)}`,
  ];
  for (const make of hostile) {
    const text = make(200_000);
    const start = cpuMilliseconds();
    call(text);
    assert(cpuMilliseconds() - start < 1000, text.slice(0, 40));
  }
});
