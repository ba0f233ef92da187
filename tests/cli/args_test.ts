import { assertEquals, assertStringIncludes, assertThrows } from "@std/assert";
import { InvalidArgument, UnknownOption } from "../../src/errors.ts";
import { checkWords, describeFlags, parseFlags } from "../../src/cli/args.ts";

const flags = {
  temperature: { type: "number", help: "randomness" },
  stop: { type: "strings", help: "stop text" },
  json: { type: "boolean", help: "as JSON" },
  device: { type: "string", choices: ["cpu", "metal"], help: "where" },
} as const;

Deno.test("flags become typed values and the rest stays in order", () => {
  const { values, words } = parseFlags(
    ["tell", "--temperature", "0.5", "me", "--json", "--stop", "a", "--stop=b", "42"],
    flags,
  );
  assertEquals(values, { temperature: 0.5, stop: ["a", "b"], json: true });
  assertEquals(words, ["tell", "me", "42"]);
});

Deno.test("absent flags are absent, so that defaults stay with the library", () => {
  assertEquals(parseFlags([], flags).values, {});
});

Deno.test("an unknown flag is named with the known ones", () => {
  const error = assertThrows(() => parseFlags(["--temprature", "1"], flags), UnknownOption, "--temprature");
  assertStringIncludes(error.message, "--temperature");
  assertThrows(() => parseFlags(["-t", "1"], flags), UnknownOption, 'Unknown option "-t"');
  assertThrows(() => parseFlags(["--temprature=1"], flags), UnknownOption, 'Unknown option "--temprature"');
});

Deno.test("a value of the wrong kind is named with its flag", () => {
  assertThrows(
    () => parseFlags(["--temperature", "warm"], flags),
    InvalidArgument,
    '--temperature is "warm"',
  );
  assertThrows(() => parseFlags(["--temperature", ""], flags), InvalidArgument, "--temperature");
  assertThrows(() => parseFlags(["--device", "tpu"], flags), InvalidArgument, "cpu, metal");
});

Deno.test("bytes may have a unit, of thousands or of 1024", () => {
  const sized = { memory: { type: "bytes", help: "most" } } as const;
  const read = (text: string) => parseFlags(["--memory", text], sized).values.memory;
  const values = { "12000000": 12e6, "8GB": 8e9, "8g": 8e9, "1.5 GiB": 1.5 * 2 ** 30, "512MiB": 2 ** 29 };
  for (
    const [text, bytes] of Object.entries({ ...values, "64k": 64e3, "2Tb": 2e12, "1e9": 1e9, "0.5kB": 500 })
  ) {
    assertEquals(read(text), bytes, text);
  }
  for (const wrong of ["much", "", "GB", "8 GBit", "-8GB", "8,5GB"]) {
    assertThrows(
      () => read(wrong),
      InvalidArgument,
      `--memory is "${wrong}"; it takes bytes, as in 8GB`,
    );
  }
});

Deno.test("a switch takes no value but true and false", () => {
  assertEquals(parseFlags(["--json=true"], flags).values, { json: true });
  assertEquals(parseFlags(["--json=false"], flags).values, { json: false });
  assertThrows(() => parseFlags(["--json=no"], flags), InvalidArgument, '--json is "no"');
  assertThrows(() => parseFlags(["--json=", "--json"], flags), InvalidArgument, '--json is ""');
});

Deno.test("the help lists every flag with its choices", () => {
  const help = describeFlags(flags);
  assertStringIncludes(help, "--device cpu|metal");
  assertEquals(help.split("\n").length, 4);
});

Deno.test("a value may begin with a dash, and what follows two dashes is words", () => {
  const { values, words } = parseFlags(
    ["--temperature", "-1", "--stop", "- a", "--stop=--", "--", "--temperature", "--nonsense"],
    flags,
  );
  assertEquals(values, { temperature: -1, stop: ["- a", "--"] });
  assertEquals(words, ["--temperature", "--nonsense"]);
});

Deno.test("a flag without its value is named", () => {
  assertThrows(() => parseFlags(["--temperature"], flags), InvalidArgument, "--temperature needs a value");
  assertThrows(() => parseFlags(["--stop", "--json"], flags), InvalidArgument, "--stop needs a value");
});

Deno.test("a word too many is named", () => {
  checkWords(["one"], 1);
  assertThrows(() => checkWords(["one", "two"], 1), InvalidArgument, '"two"');
});
