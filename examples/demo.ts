/**
 * The main job in one file: the small model that ships with markbase answers a few questions, streamed.
 *
 *     deno task demo
 */
import { load, type Message } from "../mod.ts";
import { ProgressBar } from "../src/cli/progress.ts";
import { style, write } from "../src/cli/terminal.ts";

const conversations: { title: string; messages: Message[] }[] = [
  { title: "Arithmetic", messages: [{ role: "user", content: "What is 27 + 45?" }] },
  { title: "A capital", messages: [{ role: "user", content: "What is the capital of France?" }] },
  {
    title: "Recall over turns",
    messages: [
      { role: "user", content: "My name is Grace." },
      { role: "assistant", content: "Nice to meet you, Grace!" },
      { role: "user", content: "What is my name?" },
    ],
  },
  { title: "A story", messages: [{ role: "user", content: "Tell me a story about a fox and a red kite." }] },
];

using bar = new ProgressBar();
const started = performance.now();
await using model = await load("tiny", { onProgress: bar.update });
bar.stop();
console.log(style(`Loaded the tiny model in ${(performance.now() - started).toFixed(0)} ms.\n`, "dim"));

for (const { title, messages } of conversations) {
  console.log(style(title, "bold"));
  for (const message of messages) console.log(`  ${message.role}: ${message.content}`);
  await write(Deno.stdout, "  model: ");
  const asked = performance.now();
  let first = 0;
  for await (const part of model.stream(messages, { temperature: 0, maxTokens: 80 })) {
    if (part.type === "text") {
      first ||= performance.now() - asked;
      await write(Deno.stdout, style(part.text, "green"));
    } else if (part.type === "done") {
      const seconds = (performance.now() - asked) / 1000;
      const { completionTokens } = part.reply.usage;
      console.log(style(
        `\n  first text after ${first.toFixed(0)} ms, ${completionTokens} tokens, ${
          (completionTokens / seconds).toFixed(0)
        } tokens/s\n`,
        "dim",
      ));
    }
  }
}
