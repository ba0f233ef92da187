/** The example scripts, each in a process of its own, as a reader would start them. */
import { assert, assertEquals, assertStringIncludes } from "@std/assert";
import { make } from "../../examples/media/make.ts";

const root = new URL("../../", import.meta.url).pathname;

async function run(name: string, input = ""): Promise<string> {
  const child = new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", `${root}examples/${name}`],
    stdin: "piped",
    stdout: "piped",
    stderr: "inherit",
    env: { NO_COLOR: "1" },
  }).spawn();
  const writer = child.stdin.getWriter();
  await writer.write(new TextEncoder().encode(input));
  await writer.close();
  const { code, stdout } = await child.output();
  assertEquals(code, 0, `${name} ends with ${code}`);
  return new TextDecoder().decode(stdout);
}

Deno.test("the demo answers its questions and says how fast", async () => {
  const text = await run("demo.ts");
  assertStringIncludes(text, "model: 72\n");
  assertStringIncludes(text, "The capital of France is Paris.");
  assertStringIncludes(text, "Your name is Grace.");
  assertStringIncludes(text, "tokens/s");
});

Deno.test("the chat answers each line and remembers the lines before", async () => {
  const text = await run("chat.ts", "My name is Grace.\nWhat is my name?\nWhat is 27 + 45?\n");
  assertEquals(text, "> Nice to meet you, Grace!\n> Your name is Grace.\n> 72\n> \n");
});

Deno.test("the chat ends with its input", async () => {
  assertEquals(await run("chat.ts"), "> \n");
});

Deno.test("the tools are called with the city that was asked for, and their results are in the answers", async () => {
  assertEquals((await run("tools.ts")).split("\n"), [
    "user: What is the weather in Paris?",
    'call: get_weather({"city":"Paris"}) is "sunny, 21 degrees"',
    "model: It is sunny in Paris and 21 degrees.",
    "user: What is the weather in Oslo?",
    'call: get_weather({"city":"Oslo"}) is "rainy, 9 degrees"',
    "model: It is rainy in Oslo and 9 degrees.",
    "",
  ]);
});

Deno.test("the batch keeps the order of its requests, conversations and texts alike", async () => {
  const lines = (await run("batch.ts")).trimEnd().split("\n");
  assertEquals(lines.length, 5);
  ["72", "13", "91", "The capital of France is Paris."].forEach((answer, i) =>
    assert(lines[i].startsWith(`"${answer}" (`), lines[i])
  );
  assertStringIncludes(lines[3], "its first token with");
});

Deno.test("the vision demo describes its pictures and answers about them", async () => {
  const text = await run("vision.ts");
  assertStringIncludes(text, "model: An orange star.");
  assertStringIncludes(text, "model: Orange.");
  assertStringIncludes(text, "model: Three blue circles above a green square.");
});

Deno.test("the audio demo names its sounds", async () => {
  const text = await run("audio.ts");
  assertStringIncludes(text, "model: A rising tone.");
  assertStringIncludes(text, "model: [three beeps]");
});

Deno.test("the video demo tells both scenes, and what it sees and hears,", async () => {
  const text = await run("video.ts");
  assertStringIncludes(text, "model: First: a red triangle. Second: two purple diamonds.");
  assertStringIncludes(text, "model: Image: an orange star. Audio: [a rising tone].");
});

Deno.test("the example pictures, sounds and the video are what their script makes, byte for byte", async () => {
  const folder = await Deno.makeTempDir();
  await make(folder);
  for (const name of ["star.png", "circles.png", "rising.wav", "beeps.wav", "scenes.gif"]) {
    assertEquals(
      await Deno.readFile(`${folder}/${name}`),
      await Deno.readFile(`${root}examples/media/${name}`),
    );
  }
  await Deno.remove(folder, { recursive: true });
});
