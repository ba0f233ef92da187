/**
 * The small model that ships with markbase looks at two pictures and answers questions about them.
 *
 *     deno task vision
 */
import { load, type Message } from "../mod.ts";
import { preview } from "../src/cli/preview.ts";
import { ProgressBar } from "../src/cli/progress.ts";
import { style, write } from "../src/cli/terminal.ts";
import { readPicture } from "../src/media/picture.ts";

const pictures: Record<string, string[]> = {
  "star.png": ["Describe the image.", "What colour is the star?"],
  "circles.png": ["Describe the image.", "How many shapes are there?"],
};

using bar = new ProgressBar();
await using model = await load("tiny", { onProgress: bar.update });
bar.stop();

for (const [name, questions] of Object.entries(pictures)) {
  const image = new URL(`./media/${name}`, import.meta.url);
  console.log(style(name, "bold"));
  await write(Deno.stdout, await preview(await readPicture(image)));
  // The picture stays in the conversation; later questions find it in the cache.
  const messages: Message[] = [];
  for (const question of questions) {
    const text = { type: "text" as const, text: question };
    messages.push({
      role: "user",
      content: messages.length === 0 ? [{ type: "image", image }, text] : question,
    });
    const asked = performance.now();
    const reply = await model.chat(messages, { temperature: 0 });
    messages.push({ role: "assistant", content: reply.text });
    const { imageTokens, cachedTokens } = reply.usage;
    const facts = `${
      (performance.now() - asked).toFixed(0)
    } ms, ${imageTokens} image tokens, ${cachedTokens} cached`;
    console.log(`  user: ${question}\n  model: ${style(reply.text, "green")} ${style(`(${facts})`, "dim")}`);
  }
}
