/**
 * A conversation in the terminal, as short as it gets: each line is a message, the end of input (Ctrl-D) ends it.
 *
 *     deno run -A examples/chat.ts [MODEL]
 */
import process from "node:process";
import { createInterface } from "node:readline";
import { load, type Message } from "../mod.ts";

const write = (text: string) => Deno.stdout.write(new TextEncoder().encode(text));

await using model = await load(Deno.args[0] ?? "tiny");
const messages: Message[] = [];

await write("> ");
for await (const line of createInterface({ input: process.stdin })) {
  messages.push({ role: "user", content: line });
  for await (const part of model.stream(messages, { temperature: 0, maxTokens: 200 })) {
    if (part.type === "text") await write(part.text);
    if (part.type === "done") messages.push({ role: "assistant", content: part.reply.text });
  }
  await write("\n> ");
}
await write("\n");
