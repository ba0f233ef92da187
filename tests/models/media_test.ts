/** Whole multimodal models through the public API: from picture and sound files to logits and text, against the reference. */
import { assert, assertEquals } from "@std/assert";
import { type ContentPart, load } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import { klOfLogits } from "../../src/convert/divergence.ts";
import { EXACT } from "../support/calls.ts";
import {
  cosine,
  fixtureModel,
  maxDifference,
  readGolden,
  readTensors,
  sharedTiny,
  TINY,
  TINY_DRAFTER,
} from "../support/models.ts";
import { CASES, mediaOf, readCase } from "../towers/tiny.ts";

Deno.test("the small model in fast mode, answering all golden cases at once, says the same", async () => {
  await using model = await load("tiny", { device: "cpu" });
  const cases = await Promise.all(CASES.map(readCase));
  const replies = await model.batch(cases.map(({ messages }) => messages), { temperature: 0 });
  replies.forEach((reply, i) => assertEquals(reply.text, cases[i].output_text_clean, CASES[i]));
});

const quantised = sharedTiny("model-mlx-4bit"), goldens = sharedTiny("golden");
Deno.test({
  name:
    "in fast mode the predictions after pictures and sounds are less than 0.002 nats from the reference's, 4 bits or 16",
  ignore: quantised === null || goldens === null,
  fn: async () => {
    for (const [folder, file, name] of [[TINY, "", "logits"], [quantised!, "mlx4", "logits_last"]]) {
      await using model = await load(folder, { device: "cpu" });
      const V = model.config.vocabularySize;
      for (const row of file === "" ? ["image_scene", "audio_digits"] : CASES) {
        const golden = await readCase(row);
        const tensors = await readTensors(`${goldens}/${file || row}.safetensors`);
        const { data } = tensors.get(file === "" ? name : `${row}.${name}`)!;
        const last = data.length / V;
        const logits = await model.logits(golden.input_ids, { last, media: mediaOf(golden) });
        let kl = 0;
        for (let at = 0; at < data.length; at += V) {
          kl += klOfLogits(data.subarray(at, at + V), logits.subarray(at, at + V)) / last;
        }
        assert(kl >= 0 && kl < 0.002, `${file} ${row}: ${kl}`);
      }
    }
  },
});

interface GoldenMedia {
  images: { file: string; num_soft_tokens: number }[];
  audio: { file: string; num_soft_tokens: number }[];
  video: { frames: string[]; fps: number | null };
}

/** The golden prompts of a fixture that have media, its tensors, and the part that a name in a prompt stands for. */
async function goldenMedia(folder: string) {
  const { prompts, tensors } = await readGolden(folder);
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
}

for (const row of ["e2b-mm-clipped", "e2b-mm-unclipped", "31b-mm", "12b"]) {
  const folder = fixtureModel(row);
  Deno.test({
    name: `${row}: files to soft tokens, logits and greedy continuations as the golden ones`,
    ignore: folder === null,
    fn: async () => {
      const { prompts, tensors, media, partOf } = await goldenMedia(folder!);
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

for (const row of ["e2b-mm-clipped", "e2b-mm-unclipped", "31b-mm", "12b"]) {
  const folder = fixtureModel(row);
  Deno.test({
    name: `R24: ${row} as it is used is less than 0.002 nats from the reference after any medium`,
    ignore: folder === null,
    fn: async () => {
      const { prompts, tensors, partOf } = await goldenMedia(folder!);
      await using model = await load(folder!, { device: "cpu" });
      const { vocabularySize: V } = model.config;
      for (const { name, input_ids: ids, media: names } of prompts) {
        const logits = await model.logits(ids, { last: 8, media: names!.map(partOf) });
        const expected = tensors.get(`${name}.logits_last8`)!.data;
        let kl = 0;
        for (let at = 0; at < 8 * V; at += V) {
          kl += klOfLogits(expected.subarray(at, at + V), logits.subarray(at, at + V)) / 8;
        }
        assert(kl >= 0 && kl < 0.002, `${name}: ${kl}`);
      }
    },
  });
}

for (const row of ["e2b-mm-clipped", "31b-mm", "12b"]) {
  const folder = fixtureModel(row);
  Deno.test({
    name: `${row}: a prompt of two pictures gives the same logits bit for bit in chunks of any size`,
    ignore: folder === null,
    fn: async () => {
      const { prompts } = await readGolden(folder!);
      const { input_ids: ids } = prompts.find(({ name }) => name === "two_images")!;
      const { images }: GoldenMedia = JSON.parse(await Deno.readTextFile(`${folder}/golden.json`));
      const media = images.map(({ file }): ContentPart => ({ type: "image", image: `${folder}/${file}` }));
      let first: Float32Array | undefined;
      for (const chunkRows of [512, 64, 16, 5]) {
        await using model = await loadWith(folder!, EXACT, { chunkRows });
        const logits = await model.logits(ids, { last: 6, media });
        first ??= logits;
        assertEquals(maxDifference(logits, first), 0, `chunks of ${chunkRows}`);
      }
    },
  });
}

Deno.test("a second picture is seen like the first where pictures are blocks: the first one's mask is not on it", async () => {
  const folder = fixtureModel("31b-mm");
  if (folder === null) return console.log("skipped: fixture 31b-mm is absent");
  const { prompts } = await readGolden(folder);
  const { images }: GoldenMedia = JSON.parse(await Deno.readTextFile(`${folder}/golden.json`));
  const [a, b] = images.map(({ file }): ContentPart => ({ type: "image", image: `${folder}/${file}` }));
  const ids = (name: string) => prompts.find((prompt) => prompt.name === name)!.input_ids;
  await using model = await load(folder, EXACT);
  const fresh = await model.logits(ids("two_images"), { last: 4, media: [a, b] });
  // After other prompts with media, alone and together with them, the same prompt gives the same.
  await model.logits(ids("image"), { media: [a] });
  const together = await Promise.all([
    model.logits(ids("image"), { media: [a] }),
    model.logits(ids("two_images"), { last: 4, media: [a, b] }),
    model.logits(ids("image"), { media: [a] }),
  ]);
  assertEquals(maxDifference(together[1], fresh), 0);
  assertEquals(maxDifference(together[0], together[2]), 0);
  const greedy = { temperature: 0, maxTokens: 8, ignoreEos: true };
  const alone = await Array.fromAsync(model.generate(ids("two_images"), { ...greedy, media: [a, b] }));
  const [, again] = await Promise.all([
    Array.fromAsync(model.generate(ids("image"), { ...greedy, media: [a] })),
    Array.fromAsync(model.generate(ids("two_images"), { ...greedy, media: [a, b] })),
  ]);
  assertEquals(again, alone);
});

for (const row of ["31b-mm", "12b"]) {
  const folder = fixtureModel(row);
  Deno.test({
    name: `R26: ${row}: two pictures after a long text in one session are seen as in a fresh one`,
    ignore: folder === null,
    fn: async () => {
      const { prompts, partOf } = await goldenMedia(folder!);
      const options = { ...EXACT, contextLength: 1536 };
      const long = [2, ...Array.from({ length: 900 }, (_, i) => 3 + (i * i * 31 + i * 7) % 230)];
      const { input_ids: both, media: names } = prompts.find(({ name }) => name === "two_images")!;
      const [a, b] = names!.map(partOf);
      await using model = await load(folder!, options);
      const { image, audio, video } = model.config.tokens; // which a random model may well write
      const isStart = (i: number) => both[i] === image && both[i - 1] !== image;
      const [, second] = [...both.keys()].filter(isStart);
      const turns = [long, both.slice(1, second - 1), both.slice(second - 1)];
      const logitBias = Object.fromEntries(
        [image, audio, video].flatMap((id) => id === null ? [] : [[id, -1e6]]),
      );
      const greedy = { temperature: 0, ignoreEos: true, maxTokens: 8, logitBias };
      using session = model.session();
      const media = [[], [a], [b]];
      for (const [i, ids] of turns.entries()) {
        await session.append(ids, { media: media[i] });
        if (i < 2) await Array.fromAsync(session.generate({ ...greedy, maxTokens: 2 }));
      }
      const { ids } = session;
      const found = await Array.fromAsync(session.generate(greedy));
      const logits = await model.logits(ids, { last: 4, media: [a, b] });
      assert(logits.every(Number.isFinite));
      await using fresh = await load(folder!, options);
      assertEquals(maxDifference(await fresh.logits(ids, { last: 4, media: [a, b] }), logits), 0);
      assertEquals(await Array.fromAsync(fresh.generate(ids, { ...greedy, media: [a, b] })), found);
    },
  });
}

Deno.test("with a drafter, and with drafts looked up, replies about pictures and sounds are the same", async () => {
  await using plain = await load("tiny", EXACT);
  await using drafted = await load("tiny", { ...EXACT, drafter: TINY_DRAFTER });
  for (const name of ["image_two", "audio_digits", "mixed"]) {
    const golden = await readCase(name);
    const looked = await plain.chat(golden.messages, { temperature: 0, speculative: true });
    const reply = await drafted.chat(golden.messages, { temperature: 0, speculative: 4 });
    assertEquals([looked.text, reply.text], [golden.output_text_clean, golden.output_text_clean]);
    assert(reply.speculation!.drafted > 0);
  }
});

Deno.test("e2b-mm-clipped-mlx-4bit: files to soft tokens, logits and continuations as the golden ones, without a processor_config.json", async () => {
  const folder = fixtureModel("e2b-mm-clipped-mlx-4bit"), source = fixtureModel("e2b-mm-clipped");
  if (folder === null || source === null) return console.log("skipped: the fixture is absent");
  const { prompts, tensors } = await readGolden(folder);
  const { images, audio }: GoldenMedia = JSON.parse(await Deno.readTextFile(`${source}/golden.json`));
  const partOf = (name: string): ContentPart =>
    name[0] === "i"
      ? { type: "image", image: `${source}/${images[Number(name[1])].file}` }
      : { type: "audio", audio: `${source}/${audio[Number(name[1])].file}` };
  await using model = await load(folder, EXACT);
  const { vocabularySize: V } = model.config;
  const seen = await model.embedImage(`${source}/${images[0].file}`, { imageTokens: 70 });
  const heard = await model.embedAudio(`${source}/${audio[0].file}`);
  assert(cosine(seen, tensors.get("image0.soft_tokens")!.data) >= 0.9999);
  assert(cosine(heard, tensors.get("audio0.soft_tokens")!.data) >= 0.9999);
  for (const { name, input_ids: ids, media: names, greedy } of prompts) {
    const media = names!.map((part) => partOf(String(part)));
    const logits = await model.logits(ids, { last: 8, media, imageTokens: 70 });
    const expected = tensors.get(`${name}.logits_last8`)!.data;
    for (let at = 0; at < 8 * V; at += V) {
      const similarity = cosine(logits.subarray(at, at + V), expected.subarray(at, at + V));
      assert(similarity >= 0.9999, `${name}, row ${at / V}: cosine ${similarity}`);
    }
    const options = { maxTokens: greedy.length, temperature: 0, ignoreEos: true, media, imageTokens: 70 };
    assertEquals(await Array.fromAsync(model.generate(ids, options)), greedy, name);
  }
});
