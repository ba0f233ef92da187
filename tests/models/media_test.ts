/** Whole multimodal models through the public API: from picture and sound files to logits and text, against the reference. */
import { assert, assertEquals } from "@std/assert";
import { type ContentPart, load, type Message } from "../../mod.ts";
import { cosine, fixtureModel, maxDifference, readGolden } from "../support/models.ts";

const EXACT = { device: "cpu", precision: "exact", kvCache: "f32" } as const;
const TINY = new URL("../fixtures/tiny/", import.meta.url).pathname;
const CASES = [
  "image_scene",
  "image_wide",
  "image_two",
  "audio_digits",
  "audio_command",
  "audio_rising",
  "audio_question",
  "mixed",
];

/** Messages of a case with paths for file names. */
function messagesOf({ messages }: { messages: Message[] }): Message[] {
  return messages.map((message) => ({
    ...message,
    content: Array.isArray(message.content)
      ? message.content.map((part) => {
        const name = (part as Record<string, unknown>)[part.type];
        return part.type === "text" ? part : { ...part, [part.type]: `${TINY}${name}` } as ContentPart;
      })
      : message.content,
  }));
}

Deno.test("the small model says of every golden picture and recording what the reference says, from the same ids", async () => {
  await using model = await load("tiny", EXACT);
  for (const name of CASES) {
    const golden = JSON.parse(await Deno.readTextFile(`${TINY}${name}.json`));
    const reply = await model.chat(messagesOf(golden), { temperature: 0 });
    assertEquals(reply.receipt.promptIds, golden.input_ids, name);
    assertEquals(reply.text, golden.output_text_clean, name);
    assertEquals(model.renderChat(messagesOf(golden)), golden.prompt);
  }
});

Deno.test("the small model in fast mode, answering all golden cases at once, says the same", async () => {
  await using model = await load("tiny", { device: "cpu" });
  const cases = CASES.map((name) => JSON.parse(Deno.readTextFileSync(`${TINY}${name}.json`)));
  const replies = await model.batch(cases.map(messagesOf), { temperature: 0 });
  replies.forEach((reply, i) => assertEquals(reply.text, cases[i].output_text_clean, CASES[i]));
});

interface GoldenMedia {
  images: { file: string; num_soft_tokens: number }[];
  audio: { file: string; num_soft_tokens: number }[];
  video: { frames: string[]; fps: number | null };
}

for (const row of ["e2b-mm-clipped", "e2b-mm-unclipped", "31b-mm", "12b"]) {
  const folder = fixtureModel(row);
  const read = async () => {
    const { prompts, tensors } = await readGolden(folder!);
    const media: GoldenMedia = JSON.parse(await Deno.readTextFile(`${folder}/golden.json`));
    const partOf = (name: unknown): ContentPart => {
      const index = Number(String(name).slice(1));
      switch (String(name)[0]) {
        case "i":
          return { type: "image", image: `${folder}/${media.images[index].file}` };
        case "a":
          return { type: "audio", audio: `${folder}/${media.audio[index].file}` };
        default: {
          const { frames, fps } = media.video;
          return {
            type: "video",
            video: { frames: frames.map((frame) => `${folder}/${frame}`), fps: fps ?? undefined },
          };
        }
      }
    };
    return { prompts: prompts.filter((prompt) => prompt.media?.length), tensors, media, partOf };
  };

  Deno.test({
    name: `${row}: files to soft tokens, logits and greedy continuations as the golden ones`,
    ignore: folder === null,
    fn: async () => {
      const { prompts, tensors, media, partOf } = await read();
      await using model = await load(folder!, EXACT);
      const { vocabularySize: V, hiddenSize: H } = model.config;
      for (const [i, image] of media.images.entries()) {
        const soft = await model.embedImage(`${folder}/${image.file}`);
        const expected = tensors.get(`image${i}.soft_tokens`)!;
        assertEquals([soft.length / H, H], expected.shape);
        assert(cosine(soft, expected.data) >= 0.9999, `image ${i}: ${cosine(soft, expected.data)}`);
        assert(maxDifference(soft, expected.data) <= 1e-3, `image ${i}`);
      }
      for (const [i, audio] of media.audio.entries()) {
        const soft = await model.embedAudio(`${folder}/${audio.file}`);
        const expected = tensors.get(`audio${i}.soft_tokens`)!;
        assertEquals([soft.length / H, H], expected.shape);
        assert(cosine(soft, expected.data) >= 0.9999, `audio ${i}: ${cosine(soft, expected.data)}`);
      }
      for (const { name, input_ids: ids, media: names, greedy } of prompts) {
        const parts = names!.map(partOf);
        const logits = await model.logits(ids, { last: 8, media: parts });
        const expected = tensors.get(`${name}.logits_last8`)!.data;
        for (let at = 0; at < 8 * V; at += V) {
          const a = logits.subarray(at, at + V), b = expected.subarray(at, at + V);
          assert(cosine(a, b) >= 0.9999, `${name}, row ${at / V}: cosine ${cosine(a, b)}`);
          assert(maxDifference(a, b) <= 5e-3, `${name}, row ${at / V}: ${maxDifference(a, b)} apart`);
        }
        const options = { maxTokens: greedy.length, temperature: 0, ignoreEos: true, media: parts };
        assertEquals(await Array.fromAsync(model.generate(ids, options)), greedy, name);
      }
    },
  });
}
