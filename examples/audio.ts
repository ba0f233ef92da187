/**
 * The small model that ships with markbase hears two sounds and tells what they are.
 *
 *     deno task audio
 */
import { load } from "../mod.ts";
import { ProgressBar } from "../src/cli/progress.ts";
import { style } from "../src/cli/terminal.ts";

using bar = new ProgressBar();
await using model = await load("tiny", { onProgress: bar.update });
bar.stop();

for (const name of ["rising.wav", "beeps.wav"]) {
  const audio = new URL(`./media/${name}`, import.meta.url);
  console.log(style(name, "bold"));
  for (const question of ["What do you hear?", "Transcribe the audio."]) {
    const asked = performance.now();
    const content = [{ type: "audio" as const, audio }, { type: "text" as const, text: question }];
    const reply = await model.chat([{ role: "user", content }], { temperature: 0 });
    const facts = `${(performance.now() - asked).toFixed(0)} ms, ${reply.usage.audioTokens} audio tokens`;
    console.log(`  user: ${question}\n  model: ${style(reply.text, "green")} ${style(`(${facts})`, "dim")}`);
  }
}
