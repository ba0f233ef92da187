/** Later turns with media: what the cache holds needs no tower, in a session or a saved one. */
import { assert, assertEquals } from "@std/assert";
import { type ContentPart, MarkbaseError, type Message } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import { draw, random, randomScene } from "../../examples/media/draw.ts";
import { TINY } from "../support/models.ts";
import { assistant, audio, counted, FIXTURES, GREEDY, image, text, user } from "./media_calls.ts";

Deno.test("a picture that is shown again runs no tower, in the next turn or twice in one prompt", async () => {
  const { model, runs } = await counted();
  await using _ = model;
  const messages = [user(image("scene"), text("Describe the image."))];
  const first = await model.chat(messages, GREEDY);
  assertEquals(runs, { image: 1, audio: 0 });
  messages.push(assistant(first.text), user(text("How many squares are there?")));
  const second = await model.chat(messages, GREEDY);
  assertEquals([second.text, runs.image], ["2", 1]);
  assert(second.usage.cachedTokens > 64, `${second.usage.cachedTokens} tokens were in the cache`);
  const twice = await model.chat(
    [user(image("digit"), image("digit"), text("Describe both images."))],
    GREEDY,
  );
  assertEquals(twice.text, "First: a black digit 7. Second: a black digit 7.");
  assertEquals([runs.image, twice.usage.imageTokens, new Set(twice.receipt.media).size], [2, 126, 1]);
});

Deno.test("a tower runs for what is not in the cache alone, however much was seen before", async () => {
  const { model, runs } = await counted();
  await using _ = model;
  const pictures = Array.from({ length: 6 }, (_, i): ContentPart => {
    const next = random(70 + i);
    return { type: "image", image: draw(randomScene(next), next) };
  });
  model.media.keptBytes = 0; // nothing is kept beside the cache of keys and values
  const messages: Message[] = [];
  for (const [i, picture] of pictures.entries()) {
    messages.push(user(picture, text("Describe the image.")));
    const { text: said, usage } = await model.chat(messages, { ...GREEDY, maxTokens: 12 });
    assertEquals(runs.image, i + 1, `turn ${i}`);
    assert(
      i === 0 || usage.cachedTokens > i * 60,
      `turn ${i}: ${usage.cachedTokens} tokens were in the cache`,
    );
    messages.push(assistant(said));
  }
  // Without the cache the same conversation runs them all.
  const last = await model.chat(messages.slice(0, -1), { ...GREEDY, maxTokens: 12 });
  const fresh = await counted();
  await using _fresh = fresh.model;
  const again = await fresh.model.chat(messages.slice(0, -1), { ...GREEDY, maxTokens: 12 });
  assertEquals([again.text, again.receipt.media, fresh.runs.image], [last.text, last.receipt.media, 6]);
});

Deno.test("R41: soft tokens that are kept beside the cache take a small part of the model's memory, whatever is seen", async () => {
  const memory = 64 * 2 ** 20;
  const { model, runs } = await counted({ memory, contextLength: 512 });
  await using _ = model;
  assertEquals(model.media.keptBytes, memory / 64);
  const picture = (seed: number) => ({
    data: Uint8Array.from({ length: 96 * 96 * 3 }, (_, i) => (i * (seed + 1)) % 251),
    width: 96,
    height: 96,
  });
  const bytes = (await model.embedImage(picture(0))).byteLength;
  const most = Math.floor(model.media.keptBytes / bytes);
  for (let seed = 1; seed <= most; seed++) await model.embedImage(picture(seed));
  assertEquals(runs.image, most + 1);
  await model.embedImage(picture(most)); // the last is kept, as the second is
  await model.embedImage(picture(1));
  assertEquals(runs.image, most + 1);
  await model.embedImage(picture(0)); // the first has gone
  assertEquals(runs.image, most + 2);
  await using roomy = await loadWith(TINY, { device: "cpu", memory: 2 ** 33, contextLength: 512 }, {});
  assertEquals(roomy.media.keptBytes, 64 * 2 ** 20);
});

Deno.test("a session runs a tower once, forked, saved and restored", async () => {
  const { model, runs } = await counted();
  await using _ = model;
  model.media.keptBytes = 0;
  const path = await Deno.makeTempFile();
  const say = async (session: ReturnType<typeof model.session>) =>
    model.tokenizer.decode(await Array.fromAsync(session.generate(GREEDY)), { skipSpecial: true });
  using session = model.session();
  await session.append([
    user(image("scene"), audio("digits"), text("Describe the image and transcribe the audio.")),
  ]);
  assertEquals(await say(session), "Image: a red circle above two blue squares. Audio: three seven one.");
  assertEquals(runs, { image: 1, audio: 1 });
  await session.save(path);
  using fork = session.fork();
  await fork.append([user(text("How many squares are there?"))]);
  const said = await say(fork);
  const other = await counted();
  await using _other = other.model;
  using restored = other.model.session();
  await restored.restore(path);
  await restored.append([user(text("How many squares are there?"))]);
  assertEquals(await say(restored), said);
  assertEquals([runs, other.runs], [{ image: 1, audio: 1 }, { image: 0, audio: 0 }]);
  await Deno.remove(path);
});

Deno.test("a video with sound in a session is saved and restored with its frames and their times", async () => {
  const path = await Deno.makeTempFile();
  const frames = ["scene", "digit"].map((name) => `${FIXTURES}${name}.png`);
  const video: ContentPart = { type: "video", video: { frames, fps: 0.5, audio: `${FIXTURES}digits.wav` } };
  const { model } = await counted();
  await using _ = model;
  using session = model.session();
  await session.append([user(video, text("Describe the video."))]);
  await session.save(path); // before anything was generated: nothing of it is in the cache
  const said = await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 24 }));
  const other = await counted();
  await using _other = other.model;
  using restored = other.model.session();
  await restored.restore(path);
  assertEquals(await Array.fromAsync(restored.generate({ ...GREEDY, maxTokens: 24 })), said);
  assertEquals(other.runs, { image: 2, audio: 1 });
  assertEquals(restored.ids, session.ids);
  await Deno.remove(path);
});

/** A saved session with another header, its checksum made anew. */
async function forged(path: string, change: (header: Record<string, unknown>) => void): Promise<void> {
  const bytes = await Deno.readFile(path);
  const length = new DataView(bytes.buffer).getUint32(8, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(12, 12 + length)));
  change(header);
  const json = new TextEncoder().encode(JSON.stringify(header));
  const body = new Uint8Array(12 + json.length + bytes.length - 12 - length - 32);
  body.set(bytes.subarray(0, 8));
  new DataView(body.buffer).setUint32(8, json.length, true);
  body.set(json, 12);
  body.set(bytes.subarray(12 + length, -32), 12 + json.length);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
  await Deno.writeFile(path, new Uint8Array([...body, ...digest]));
}

Deno.test("media of a saved session that do not fit the model or themselves are refused, and the session stays", async () => {
  const { model, runs } = await counted();
  await using _ = model;
  const path = await Deno.makeTempFile();
  using session = model.session();
  await session.append([
    user(image("scene"), audio("digits"), text("Describe the image and transcribe the audio.")),
  ]);
  type Saved = Record<string, unknown>[];
  const base64 = (values: Float32Array) => new Uint8Array(values.buffer).toBase64();
  const frames = 113;
  const wrong: ((media: Saved) => void)[] = [
    (media) => media[0].tokens = 63,
    (media) => media[0].columns = 23,
    (media) => media[0].pixels = "AAAA",
    (media) => media[0].pixels = "no base64 !",
    (media) => media[0].kind = "smell",
    (media) => media[0].start = -1,
    (media) => media[0].start = 1e9,
    (media) => media[1].start = 1, // inside the picture
    (media) => media[1].logMel = base64(new Float32Array(frames * 128).fill(NaN)),
    (media) => media[1].logMel = base64(new Float32Array(3)),
    (media) => media[1].valid = new Uint8Array(frames).fill(2).toBase64(),
    (media) => media[1].tokens = 29,
    (media) => media.pop(),
  ];
  const ids = session.ids;
  for (const [i, change] of wrong.entries()) {
    await session.save(path);
    await forged(path, ({ media }) => change(media as Saved));
    const error = await session.restore(path).then(() => undefined, (error) => error);
    assert(error instanceof MarkbaseError, `change ${i}: ${error}`);
    assertEquals(session.ids, ids);
  }
  await session.save(path);
  await forged(path, () => {});
  await session.restore(path);
  const said = await Array.fromAsync(session.generate(GREEDY));
  assertEquals(
    model.tokenizer.decode(said, { skipSpecial: true }),
    "Image: a red circle above two blue squares. Audio: three seven one.",
  );
  assertEquals(runs, { image: 1, audio: 1 });
  await Deno.remove(path);
});

Deno.test("a picture, a sound and a video in one message come in their order, and give the same alone and beside others", async () => {
  const { model } = await counted();
  await using _ = model;
  const frames = ["scene", "digit"].map((name) => `${FIXTURES}${name}.png`);
  const video: ContentPart = { type: "video", video: { frames, fps: 1 } };
  const all = [
    user(text("A:"), image("digit"), text("B:"), audio("digits"), text("C:"), video, text("What?")),
  ];
  const options = { ...GREEDY, maxTokens: 16 };
  const alone = await model.chat(all, options);
  assertEquals([alone.usage.imageTokens, alone.usage.audioTokens], [63 + 64 + 63, 28]);
  assertEquals(alone.receipt.media!.map((key) => key.split(" ")[0]), ["image", "audio", "image", "image"]);
  const { image: I, audio: A, video: V } = model.config.tokens;
  const kinds = alone.receipt.promptIds.map((id) => id === I ? "i" : id === A ? "a" : id === V ? "v" : "");
  assertEquals(kinds.join("").replace(/(.)\1+/g, "$1"), "iav");
  const fresh = await counted();
  await using _fresh = fresh.model;
  const others = ["scene", "wide"].map((name) => [user(image(name), text("Describe the image."))]);
  const together = await fresh.model.batch([others[0], all, others[1], all], options);
  assertEquals(together.map((reply) => reply.text), [
    "A red circle above two blue squares.",
    alone.text,
    "Three green triangles.",
    alone.text,
  ]);
});
