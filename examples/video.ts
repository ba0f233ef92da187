/**
 * The small model that ships with markbase looks at a video of two scenes: an animated GIF, then its frames with a sound.
 *
 *     deno task video
 */
import { type ContentPart, load, type VideoInput } from "../mod.ts";
import { ProgressBar } from "../src/cli/progress.ts";
import { style } from "../src/cli/terminal.ts";
import { readVideo } from "../src/media/video.ts";
import { timestamp } from "../src/media/spans.ts";

const file = (name: string) => new URL(`./media/${name}`, import.meta.url);

using bar = new ProgressBar();
await using model = await load("tiny", { onProgress: bar.update });
bar.stop();

async function ask(title: string, parts: ContentPart[], question: string): Promise<void> {
  const asked = performance.now();
  const reply = await model.chat([{ role: "user", content: [...parts, { type: "text", text: question }] }], {
    temperature: 0,
  });
  const { imageTokens = 0, audioTokens = 0 } = reply.usage;
  const facts = `${
    (performance.now() - asked).toFixed(0)
  } ms, ${imageTokens} image and ${audioTokens} audio tokens`;
  console.log(`${style(title, "bold")}\n  user: ${question}`);
  console.log(`  model: ${style(reply.text, "green")} ${style(`(${facts})`, "dim")}`);
}

const video: VideoInput = file("scenes.gif");
await ask("scenes.gif", [{ type: "video", video }], "Describe the video.");
const frames = await readVideo(video, { frames: 32, sound: false });
for await (const { picture: { pixels: data, width, height }, time } of frames.frames) {
  await ask(
    `the frame at ${timestamp(time)}`,
    [{ type: "image", image: { data, width, height } }],
    "What do you see?",
  );
}
await ask(
  "star.png and rising.wav as a video",
  [{ type: "video", video: { frames: [file("star.png")], audio: file("rising.wav") } }],
  "What do you see and hear?",
);
