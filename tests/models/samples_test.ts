/** How often the shipped model is right on pictures and sounds that the project makes itself, in its own words. */
import { assert } from "@std/assert";
import { type ContentPart, load } from "../../mod.ts";
import { caption, draw, random, randomScene } from "../../examples/media/draw.ts";
import { RATE, synthesise, TONES } from "../../examples/media/tones.ts";

const open = () => load("tiny", { device: "cpu" });

async function shareRight(
  samples: { part: ContentPart; question: string; answer: string }[],
): Promise<number> {
  await using model = await open();
  const replies = await model.batch(
    samples.map((
      { part, question },
    ) => [{ role: "user", content: [part, { type: "text", text: question }] }]),
    { temperature: 0 },
  );
  const wrong = replies.flatMap(({ text }, i) =>
    text === samples[i].answer ? [] : [`${samples[i].answer} | ${text}`]
  );
  if (wrong.length > 0) console.log(wrong.join("\n"));
  return 1 - wrong.length / samples.length;
}

Deno.test("of 24 drawings of coloured shapes at least nine tenths are described exactly", async () => {
  const share = await shareRight(Array.from({ length: 24 }, (_, i) => {
    const next = random(1000 + i);
    const scene = randomScene(next);
    const image = draw(scene, next);
    return { part: { type: "image", image }, question: "Describe the image.", answer: caption(scene) };
  }));
  assert(share >= 0.9, `${(share * 100).toFixed(0)} % right`);
});

Deno.test("of 27 tones, beeps, noises and silences at least nine tenths are named exactly", async () => {
  const share = await shareRight(Array.from({ length: 27 }, (_, i) => {
    const tone = TONES[i % TONES.length];
    const audio = { data: synthesise(tone, random(2000 + i)), sampleRate: RATE };
    return { part: { type: "audio", audio }, question: "Transcribe the audio.", answer: `[${tone}]` };
  }));
  assert(share >= 0.9, `${(share * 100).toFixed(0)} % right`);
});

Deno.test("tones recorded at 44100 Hz in two channels are named like those of 16000 Hz", async () => {
  await using model = await open();
  const seconds = 1, rate = 44_100;
  const high = new Float32Array(2 * seconds * rate);
  for (let i = 0; i < seconds * rate; i++) {
    high[2 * i] = high[2 * i + 1] = 0.4 * Math.sin(2 * Math.PI * 1800 * i / rate);
  }
  const audio = { data: high, sampleRate: rate, channels: 2 };
  const content: ContentPart[] = [{ type: "audio", audio }, { type: "text", text: "What do you hear?" }];
  const { text } = await model.chat([{ role: "user", content }], { temperature: 0 });
  assert(text === "A high tone.", text);
});
