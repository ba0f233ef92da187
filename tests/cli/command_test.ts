import { assert, assertEquals, assertMatch, assertStringIncludes } from "@std/assert";
import { allCases } from "../../src/conformance/cases.ts";
import { markbase } from "../support/process.ts";

/** The ops of the conformance table, in its order. */
const OPS = [...new Set(allCases().map(({ op }) => op))];

const main = new URL("../../src/cli/main.ts", import.meta.url).pathname;

Deno.test("generate answers a prompt given as words", async () => {
  assertEquals(await markbase(["generate", "What is 27 + 45?", "--temperature", "0"]), {
    code: 0,
    stdout: "72\n",
    stderr: "",
  });
});

Deno.test("generate reads the prompt from standard input and prints JSON", async () => {
  const { code, stdout } = await markbase(
    ["generate", "--json", "--temperature", "0"],
    "What is the capital of Japan?\n",
  );
  const reply = JSON.parse(stdout);
  assertEquals(code, 0);
  assertEquals(reply.text, "The capital of Japan is Tokyo.");
  assertEquals(reply.finishReason, "stop");
  assertMatch(reply.receipt.library, /^[0-9a-f]{64}$/);
});

Deno.test("generate refuses an empty prompt", async () => {
  const { code, stderr } = await markbase(["generate"], "  \n");
  assertEquals(code, 2);
  assertStringIncludes(stderr, "The prompt is empty");
});

Deno.test("generate --raw says what it warns of, and refuses flags that only messages have", async () => {
  const args = ["generate", "--raw", "One two", "--temperature", "0"];
  const { code, stderr } = await markbase([...args, "--json"]);
  assertEquals([code, stderr], [0, ""]);
  const warned = await markbase([...args, "--context", "4096"]);
  assertEquals(warned.code, 0);
  assertStringIncludes(warned.stderr, "warning: The context of 4096 tokens is longer than the 2048");
  for (const flag of [["--system", "Be kind."], ["--thinking"]]) {
    const refused = await markbase([...args, ...flag]);
    assertEquals(refused.code, 2);
    assertStringIncludes(refused.stderr, `--raw and ${flag[0]} exclude each other`);
  }
});

Deno.test({
  name: "an output that takes no more is one line and an exit code",
  ignore: Deno.build.os !== "linux",
  async fn() {
    const command =
      `"${Deno.execPath()}" run -A --quiet "${main}" generate "What is 27 + 45?" --temperature 0 > /dev/full`;
    const { code, stderr } = await new Deno.Command("sh", { args: ["-c", command], env: { NO_COLOR: "1" } })
      .output();
    assertEquals(code, 1);
    assertMatch(new TextDecoder().decode(stderr), /^error: The output cannot be written: .*\n$/);
  },
});

Deno.test("doctor takes no words", async () => {
  const { code, stderr } = await markbase(["doctor", "everything"]);
  assertEquals(code, 2);
  assertStringIncludes(stderr, '"everything" is one word too many');
});

Deno.test("generate names a model that is not there", async () => {
  const { code, stderr } = await markbase(["generate", "hello", "--model", "./no/such/folder"]);
  assertEquals(code, 1);
  assertStringIncludes(stderr, "no/such/folder");
});

Deno.test("chat keeps the conversation over turns and knows its commands", async () => {
  const { code, stdout } = await markbase(
    ["chat", "--temperature", "0"],
    [
      "My name is Grace.",
      "What is my name?",
      "/stats",
      "/undo",
      "/nonsense",
      "/clear",
      "What is 2 + 2?",
      "/exit",
      "never",
    ].join("\n"),
  );
  assertEquals(code, 0);
  assertStringIncludes(stdout, "Your name is Grace.");
  assertMatch(stdout, /\d+ prompt tokens, \d+ generated/);
  assertStringIncludes(stdout, "Unknown command /nonsense");
  assertMatch(stdout, /^.*4$/m);
  assert(!stdout.includes("never"));
});

Deno.test("thoughts end with a line of their own before the answer begins", async () => {
  const thought = "Units: 2 + 3 = 5. Tens: 0 + 0 = 0. Total: 5.\n";
  const greedy = ["--thinking", "--temperature", "0"];
  assertEquals(await markbase(["generate", "What is 2 + 3?", ...greedy]), {
    code: 0,
    stdout: "5\n",
    stderr: thought,
  });
  const { stdout } = await markbase(["chat", ...greedy], "What is 2 + 3?\n");
  assertStringIncludes(stdout, thought + "5\n");
});

Deno.test("explain prints the layers, and JSON for programs", async () => {
  const text = await markbase(["explain", "--on", "M4 Max"]);
  assertEquals(text.code, 0);
  assertStringIncludes(text.stdout, "predicted on M4 Max");
  assertEquals(text.stdout.split("\n").filter((line) => /^ +\d+ {2}(sliding|full)/.test(line)).length, 9);
  const json = JSON.parse((await markbase(["explain", "--json", "--rows", "64"])).stdout);
  assertEquals(json.variant, "prefill");
  assertEquals(json.layers.length, 9);
});

Deno.test("explain needs no weights", async () => {
  const folder = await Deno.makeTempDir();
  try {
    const config = new URL("../../examples/tiny/config.json", import.meta.url);
    await Deno.copyFile(config, `${folder}/config.json`);
    const { code, stdout, stderr } = await markbase(["explain", "--model", folder]);
    assertEquals({ code, stderr }, { code: 0, stderr: "" });
    assertStringIncludes(stdout, "9 layers");
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("doctor checks the machine and says what it lacks", async () => {
  const { code, stdout } = await markbase(["doctor", "--json"]);
  const findings: {
    name: string;
    state: string;
    conformance?: { ops: { op: string; cases: number; failed: number }[]; failures: string[] };
  }[] = JSON.parse(stdout);
  assertEquals(code, 0, stdout);
  const { ops, failures } = findings.find((finding) => finding.name === "cpu")!.conformance!;
  assertEquals(failures, []);
  assertEquals(ops.map(({ op }) => op), OPS);
  for (const { op, cases, failed } of ops) assert(cases > 0 && failed === 0, op);
  assertEquals(findings.find((finding) => finding.name === "cpu")?.state, "ok");
  assertEquals(findings.find((finding) => finding.name === "model")?.state, "ok");
});

Deno.test("R56: doctor names Deno, the system with its release, the library and the device", async () => {
  const { code, stdout } = await markbase(["doctor", "--device", "cpu", "--quick"]);
  assertEquals(code, 0, stdout);
  const line = (name: string) => stdout.split("\n").find((line) => line.includes(` ${name}: `)) ?? "";
  for (const part of [Deno.version.deno, Deno.build.target, Deno.build.os, Deno.osRelease()]) {
    assertStringIncludes(line("deno"), part);
  }
  assertMatch(line("library"), /SHA-256 [0-9a-f]{16}/);
  assertMatch(line("cpu"), /: \S.*, \w+, \d+ threads?, [\d.]+ GB: /);
});

Deno.test("doctor prints a line for each op, and fails when the device that it is asked about is absent", async () => {
  const { code, stdout } = await markbase(["doctor", "--device", "cpu", "--quick"]);
  assertEquals(code, 0, stdout);
  const runs = `${2 * OPS.length} runs of ${OPS.length} cases agree with the reference`;
  assertMatch(stdout, new RegExp(`^ok +cpu: .*${runs}`, "m"));
  assertMatch(stdout, /^ +linear +1 +\d\.\de-\d+ +1\.0e-5 +\d\.\de-\d+ +1\.0e-2 +ok$/m);
  assert(!stdout.includes("cuda:"), stdout);
  const both = await markbase(["doctor", "--full", "--quick"]);
  assertEquals(both.code, 2);
  const unknown = await markbase(["doctor", "--device", "tpu"]);
  assertEquals(unknown.code, 2);
});

Deno.test("every command is listed and explains itself", async () => {
  const { stdout } = await markbase(["--help"]);
  const commands = stdout.split("\n").flatMap((line) => /^ {2}(\w+) /.exec(line)?.[1] ?? []);
  const expected = "batch bench chat describe doctor explain generate list pull quantize remove transcribe";
  assertEquals(commands.sort(), expected.split(" "));
  const helps = await Promise.all(commands.map((command) => markbase([command, "--help"])));
  helps.forEach(({ code, stdout }, i) => {
    assertEquals(code, 0);
    assertStringIncludes(stdout, `markbase ${commands[i]}`);
  });
});

Deno.test("bench tells the rates of prompts and of generation, and JSON for programs", async () => {
  const size = ["--device", "cpu", "--prompt", "40", "--tokens", "4", "--repetitions", "2"];
  const text = await markbase(["bench", ...size]);
  assertEquals(text.code, 0, text.stderr);
  assertMatch(text.stdout, /^prompt +40( +[\d.]+){3}$/m);
  assertMatch(text.stdout, /^generation +4( +[\d.]+){3}$/m);
  const { stdout } = await markbase(["bench", "tiny", ...size, "--sequences", "3", "--json"]);
  const result = JSON.parse(stdout);
  assertEquals([result.model, result.device, result.sequences], ["tiny", "cpu", 3]);
  for (const rates of [result.tokensPerSecond.prompt, result.tokensPerSecond.generation]) {
    assertEquals(rates.length, 2);
    for (const rate of rates) assert(rate > 0 && Number.isFinite(rate));
  }
  const wrong = await markbase(["bench", "--tokens", "1"]);
  assertEquals(wrong.code, 2);
  assertStringIncludes(wrong.stderr, "--tokens is 1");
});

Deno.test("--version tells the version of the package", async () => {
  const { version } = JSON.parse(await Deno.readTextFile(new URL("../../deno.json", import.meta.url)));
  assertEquals(await markbase(["--version"]), { code: 0, stdout: `markbase ${version}\n`, stderr: "" });
});

Deno.test("wrong usage exits with 2 and says what is right", async () => {
  assertEquals((await markbase([])).code, 2);
  const command = await markbase(["genrate"]);
  assertEquals(command.code, 2);
  assertStringIncludes(command.stderr, "generate");
  const flag = await markbase(["generate", "--temprature", "1", "x"]);
  assertEquals(flag.code, 2);
  assertStringIncludes(flag.stderr, "--temperature");
  const help = await markbase(["chat", "--help"]);
  assertEquals(help.code, 0);
  assertStringIncludes(help.stdout, "--max-tokens");
});

Deno.test("chat survives a question that does not fit, and answers the next one", async () => {
  const { code, stdout, stderr } = await markbase(
    ["chat", "--temperature", "0", "--context", "64"],
    ["My name is Grace.", "word ".repeat(100), "What is my name?"].join("\n"),
  );
  assertEquals(code, 0);
  assertMatch(stderr, /^error: The sequence would hold \d+ tokens but the context length is 64\./);
  assertStringIncludes(stdout, "Your name is Grace.");
});

Deno.test("Ctrl-C stops one reply of a chat and keeps the conversation; at the prompt it leaves", async () => {
  const child = new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", main, "chat", "--temperature", "100", "--top-k", "0", "--top-p", "1", "--seed", "3"],
    env: { NO_COLOR: "1" },
    stdin: "piped",
    stdout: "piped",
    stderr: "inherit",
  }).spawn();
  const input = child.stdin.getWriter();
  const say = (line: string) => input.write(new TextEncoder().encode(line + "\n"));
  const output = child.stdout.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  const until = async (pattern: RegExp) => {
    const from = text.length;
    while (!pattern.test(text.slice(from))) {
      const { value, done } = await output.read();
      assert(!done, `the chat ended after ${JSON.stringify(text)}`);
      text += value;
    }
  };
  await until(/> $/);
  await say("Tell me a story.");
  await until(/\w/);
  child.kill("SIGINT");
  await until(/ \[stopped\]\n> $/);
  await say("/undo");
  await until(/Took back the last question\.\n> $/);
  child.kill("SIGINT");
  await until(/^\n$/); // the line of the prompt ends
  const { code } = await child.status;
  assertEquals(code, 0);
  await output.cancel();
  await input.close().catch(() => {}); // the chat has ended already
});

Deno.test("a reader that stops early ends a command quietly", async () => {
  const child = new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", "--quiet", main, "generate", "--temperature", "0", "Tell me a short story."],
    stdin: "null",
    stdout: "piped",
    stderr: "piped",
  }).spawn();
  await child.stdout.cancel();
  const stderr = await new Response(child.stderr).text();
  assertEquals(stderr, "");
  assertEquals((await child.status).code, 141);
});

Deno.test("quantize writes a smaller model that answers, and says how far it is from the original", async () => {
  const folder = await Deno.makeTempDir();
  try {
    const { code, stdout, stderr } = await markbase([
      "quantize",
      "tiny",
      `${folder}/small`,
      "--bits",
      "5",
      "--group",
      "32",
    ]);
    assertEquals({ code, stderr }, { code: 0, stderr: "" });
    assertMatch(stdout, /^\S+small: 6\.\d+ MB instead of 11\.4 MB, 6\.00 bits a text weight$/m);
    assertMatch(
      stdout,
      /^mean KL to the original 0\.0\d+ nats a token, the same likeliest token for 9\d\.\d %/m,
    );
    const answer = await markbase([
      "generate",
      "What is 27 + 45?",
      "--temperature",
      "0",
      "--model",
      `${folder}/small`,
    ]);
    assertEquals(answer.stdout, "72\n");
    await Deno.writeTextFile(`${folder}/recipe.json`, '{"*.down_proj": {"bits": 8}}');
    const mixed = ["--mixed", `${folder}/recipe.json`, "--no-measure", "--json"];
    const result = JSON.parse((await markbase(["quantize", "tiny", `${folder}/mixed`, ...mixed])).stdout);
    assertEquals([result.divergence, result.searched], [null, false]);
    assert(result.bitsPerWeight > 4.5 && result.bitsPerWeight < 5.5, `${result.bitsPerWeight}`);
    for (
      const wrong of [
        ["quantize", "tiny"],
        ["quantize", "tiny", `${folder}/x`, "--bits", "7"],
        ["quantize", "tiny", `${folder}/x`, "--mixed", "none"],
        ["quantize", "tiny", `${folder}/x`, "--mixed", "mixed_4_6", "--bits", "4"],
        ["quantize", "tiny", `${folder}/mixed`],
      ]
    ) assertEquals((await markbase(wrong)).code, 2, wrong.join(" "));
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});
