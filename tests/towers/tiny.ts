/** Tests of the shipped model with pictures and sounds, from files to text, for one device. */
import { assert, assertEquals } from "@std/assert";
import type { ContentPart, Message } from "../../mod.ts";
import { cosine, maxDifference, readTensors, sharedTiny, TINY } from "../support/models.ts";
import type { Load } from "./goldens.ts";

const FIXTURES = new URL("../fixtures/tiny/", import.meta.url).pathname;

/** The golden conversations with media. */
export const CASES = [
  "image_scene",
  "image_wide",
  "image_two",
  "audio_digits",
  "audio_command",
  "audio_rising",
  "audio_question",
  "mixed",
];

interface Case {
  messages: Message[];
  prompt: string;
  input_ids: number[];
  output_ids: number[];
  output_text_clean: string;
}

/** A golden conversation, its files as paths. */
export async function readCase(name: string): Promise<Case> {
  const golden: Case = JSON.parse(await Deno.readTextFile(`${FIXTURES}${name}.json`));
  const messages = golden.messages.map((message) => ({
    ...message,
    content: (message.content as ContentPart[]).map((part) =>
      part.type === "text"
        ? part
        : { ...part, [part.type]: FIXTURES + (part as Record<string, unknown>)[part.type] } as ContentPart
    ),
  }));
  return { ...golden, messages };
}

/** The media of a conversation, in order. */
export function mediaOf({ messages }: Case): ContentPart[] {
  return messages.flatMap(({ content }) => content as ContentPart[]).filter(({ type }) => type !== "text");
}

/** Registers the tests. `device` stands in their names; what needs the optional set is named and skipped. */
export function testTiny(device: string, load: Load): void {
  Deno.test(`the shipped model on ${device} meets the golden logits of every picture and recording, and says the same`, async () => {
    await using model = await load(TINY, {});
    const logits = await readTensors(`${FIXTURES}media_logits.safetensors`);
    for (const name of CASES) {
      const golden = await readCase(name);
      const { input_ids: ids, output_ids: ended } = golden;
      const media = mediaOf(golden);
      checkLogits(await model.logits(ids, { media }), logits.get(`${name}.logits_last`)!.data, name);
      const options = { temperature: 0, maxTokens: ended.length + 4, media };
      assertEquals(await Array.fromAsync(model.generate(ids, options)), ended, name);
      const reply = await model.chat(golden.messages, { temperature: 0 });
      assertEquals(reply.receipt.promptIds, ids, name);
      assertEquals(reply.text, golden.output_text_clean, name);
      assertEquals(model.renderChat(golden.messages), golden.prompt, name);
    }
  });

  const shared = sharedTiny("golden");
  if (shared === null) {
    console.log("the golden soft tokens of the shipped model are absent; tests of them are skipped");
  }
  Deno.test({
    name:
      `the shipped model on ${device} meets the golden soft tokens of every file, and the logits of every position`,
    ignore: shared === null,
    async fn() {
      await using model = await load(TINY, {});
      const H = model.config.hiddenSize;
      for (const name of CASES) {
        const tensors = await readTensors(`${shared}/${name}.safetensors`);
        const golden = await readCase(name);
        const seen: number[] = [];
        for (const part of mediaOf(golden)) {
          if (part.type === "image") seen.push(...await model.embedImage(part.image));
          if (part.type !== "audio") continue;
          const heard = await model.embedAudio(part.audio);
          // The reference's rows of padding follow those of the sound.
          const expected = tensors.get("audio_embed")!.data.subarray(0, heard.length);
          assertEquals(heard.length / H, tensors.get("audio_tower")!.shape[0], name);
          assert(cosine(heard, expected) >= 0.9999, `${name}: cosine ${cosine(heard, expected)}`);
          assert(maxDifference(heard, expected) <= 5e-3, `${name}: ${maxDifference(heard, expected)} apart`);
        }
        const expected = tensors.get("vision_embed")?.data ?? new Float32Array(0);
        assertEquals(seen.length, expected.length, name);
        if (seen.length > 0) {
          assert(cosine(seen, expected) >= 0.9999, `${name}: cosine ${cosine(seen, expected)}`);
          assert(maxDifference(seen, expected) <= 5e-3, `${name}: ${maxDifference(seen, expected)} apart`);
        }
        const { data, shape: [last] } = tensors.get("logits") ?? { data: undefined, shape: [0] };
        if (data === undefined) continue;
        checkLogits(await model.logits(golden.input_ids, { last, media: mediaOf(golden) }), data, name);
      }
    },
  });

  const quantised = sharedTiny("model-mlx-4bit");
  Deno.test({
    name:
      `the 4-bit copy of the shipped model on ${device} meets its golden logits of every picture and recording`,
    ignore: quantised === null || shared === null,
    async fn() {
      await using model = await load(quantised!, {});
      const outputs = JSON.parse(await Deno.readTextFile(`${shared}/mlx4.json`));
      const tensors = await readTensors(`${shared}/mlx4.safetensors`);
      for (const name of CASES) {
        const golden = await readCase(name);
        const { input_ids: ids } = golden;
        const media = mediaOf(golden);
        checkLogits(await model.logits(ids, { media }), tensors.get(`${name}.logits_last`)!.data, name);
        const options = { temperature: 0, maxTokens: 40, media };
        assertEquals(await Array.fromAsync(model.generate(ids, options)), outputs[name].output_ids, name);
      }
    },
  });
}

function checkLogits(found: Float32Array, expected: Float32Array, name: string): void {
  assert(cosine(found, expected) >= 0.9999, `${name}: cosine ${cosine(found, expected)}`);
  assert(maxDifference(found, expected) <= 2e-2, `${name}: ${maxDifference(found, expected)} apart`);
}
