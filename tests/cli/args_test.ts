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
