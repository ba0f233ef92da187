/** `markbase generate`: one prompt in, one answer out. */
import type { Reply } from "../../mod.ts";
import { InvalidArgument } from "../errors.ts";
import { describeFlags, parseFlags } from "./args.ts";
import { generationFlags, generationOptions, loadFlags, loadModel } from "./options.ts";
import { ProgressBar } from "./progress.ts";
import { harmless, readAll, write } from "./terminal.ts";

const flags = {
  ...loadFlags,
  ...generationFlags,
  system: { type: "string", value: "TEXT", help: "system message" },
  thinking: { type: "boolean", help: "let the model think first; thoughts go to stderr" },
  raw: { type: "boolean", help: "continue the text as it stands, without the chat template" },
  json: { type: "boolean", help: "print the whole reply as one JSON object" },
} as const;

/** Help text of the command. */
export const help =
  `markbase generate [PROMPT…]\n\nAnswers one prompt; without words it reads the prompt from standard input.\n\n${
    describeFlags(flags)
  }`;

/** Runs the command with the words after its name. */
export async function generate(args: string[], signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, flags);
  const prompt = words.length > 0 ? words.join(" ") : await readAll(Deno.stdin.readable);
  if (prompt.trim() === "") {
    throw new InvalidArgument('The prompt is empty. Write it after "generate" or pipe it in.');
  }
  for (const name of ["system", "thinking"] as const) {
    if (values.raw && values[name] !== undefined) {
      throw new InvalidArgument(`--raw and --${name} exclude each other: a raw text has no messages.`);
    }
  }
  using bar = new ProgressBar();
  await using model = await loadModel(values, bar, signal);
  const options = { ...generationOptions(values), signal };
  if (values.raw) {
    const reply = await model.complete(prompt, options);
    if (values.json) return await write(Deno.stdout, JSON.stringify(reply) + "\n");
    await write(Deno.stdout, harmless(reply.text));
    await writeWarnings(reply);
    await write(Deno.stdout, "\n");
    return;
  }
  const messages = [
    ...(values.system === undefined ? [] : [{ role: "system" as const, content: values.system }]),
    { role: "user" as const, content: prompt },
  ];
  const chatOptions = { ...options, ...(values.thinking ? { thinking: true } : {}) };
  if (values.json) {
    await write(Deno.stdout, JSON.stringify(await model.chat(messages, chatOptions)) + "\n");
    return;
  }
  let isThinking = false;
  for await (const part of model.stream(messages, chatOptions)) {
    if (isThinking && part.type !== "thinking") await write(Deno.stderr, "\n");
    isThinking = part.type === "thinking";
    if (part.type === "text") await write(Deno.stdout, harmless(part.text));
    else if (part.type === "thinking") await write(Deno.stderr, harmless(part.text, Deno.stderr));
    else if (part.type === "done") await writeWarnings(part.reply);
  }
  await write(Deno.stdout, "\n");
}

async function writeWarnings({ warnings }: Reply): Promise<void> {
  for (const { message } of warnings) await write(Deno.stderr, `\nwarning: ${message}`);
}
