/** Pictures, sounds and videos in the calls of a model: what goes into prompts, what is refused, what sessions and caches keep. */
import { assert, assertEquals, assertMatch, assertRejects } from "@std/assert";
import {
  type ContentPart,
  ContextFull,
  InvalidArgument,
  load,
  MarkbaseError,
  MediaError,
  type Message,
  UnknownOption,
} from "../../mod.ts";
import { caption, draw, type Group, random } from "../../examples/media/draw.ts";
import { EXACT } from "../support/calls.ts";
import { fixtureModel, maxDifference } from "../support/models.ts";

const TINY = new URL("../fixtures/tiny/", import.meta.url).pathname;
const GREEDY = { temperature: 0 } as const;
const scene = `${TINY}scene.png`, digit = `${TINY}digit.png`, digits = `${TINY}digits.wav`;

const image = (image: Extract<ContentPart, { type: "image" }>["image"]): ContentPart => ({
  type: "image",
  image,
});
const audio = (audio: Extract<ContentPart, { type: "audio" }>["audio"]): ContentPart => ({
  type: "audio",
  audio,
});
const text = (text: string): ContentPart => ({ type: "text", text });
const user = (...content: ContentPart[]): Message => ({ role: "user", content });

/** One coloured shape. */
function drawing(colour: string, shape: string, seed = 1) {
  const groups: Group[] = [{ count: 1, colour, shape }];
  const plan = { width: 240, height: 240, groups };
  return { picture: draw(plan, random(seed)), caption: caption(plan) };
}

Deno.test("usage counts soft tokens by kind, and the receipt names the media and replays the reply", async () => {
  await using model = await load("tiny", EXACT);
  const parts = [image(scene), audio(digits)];
  const messages = [user(...parts, text("Describe the image and transcribe the audio."))];
  const { text: said, usage, receipt } = await model.chat(messages, GREEDY);
  assertEquals(said, "Image: a red circle above two blue squares. Audio: three seven one.");
  assertEquals([usage.imageTokens, usage.audioTokens], [64, 28]);
  assertEquals(receipt.media!.length, 2);
  assertMatch(receipt.media![0], /^image 24x24 [0-9a-f]{64}$/);
  const ids = await Array.fromAsync(model.generate(receipt.promptIds, { ...GREEDY, media: parts }));
  assertEquals(model.tokenizer.decode(ids, { skipSpecial: true }), said);
  const plain = await model.chat([{ role: "user", content: "What is 2 + 3?" }], GREEDY);
  assertEquals(["imageTokens" in plain.usage, "media" in plain.receipt], [false, false]);
});

Deno.test("embedImage and embedAudio give soft tokens × hidden size, the same whatever form the input has", async () => {
  await using model = await load("tiny", EXACT);
  const H = model.config.hiddenSize;
  const seen = await model.embedImage(scene);
  assertEquals(seen.length, 64 * H);
  assertEquals(maxDifference(seen, await model.embedImage(new Blob([await Deno.readFile(scene)]))), 0);
  const more = await model.embedImage(scene, { imageTokens: 140 });
  assert(more.length > 100 * H && more.length <= 140 * H);
  const heard = await model.embedAudio(digits);
  assertEquals(heard.length, 28 * H);
  seen.fill(0); // the caller's own
  assert((await model.embedImage(scene)).some((value) => value !== 0));
});

Deno.test("options and media that are wrong are refused by name", async () => {
  await using model = await load("tiny");
  const ask = [user(image(scene), text("Describe the image."))];
  assertMatch(
    (await assertRejects(() => model.chat(ask, { imageTokens: 100 }), InvalidArgument)).message,
    /imageTokens is 100; it must be one of 70, 140, 280, 560, 1120/,
  );
  await assertRejects(() => model.embedImage(scene, { tokens: 70 } as never), UnknownOption);
  await assertRejects(() => model.complete("a", { imageTokens: 70 } as never), UnknownOption);
  await assertRejects(
    () => model.chat([user({ type: "picture", picture: scene } as never)]),
    InvalidArgument,
  );
  await assertRejects(() => model.chat([user(image(undefined as never))]), InvalidArgument);
  await assertRejects(() => model.embedAudio(42 as never), InvalidArgument);
  assertEquals(
    (await assertRejects(() => model.chat([user(image(digits))]), MediaError)).code,
    "unsupported_media",
  );
  const system: Message[] = [{ role: "system", content: [image(scene)] }, { role: "user", content: "Hello" }];
  await assertRejects(() => model.chat(system), InvalidArgument);
  const stopped = AbortSignal.abort(new Error("enough"));
  assertEquals((await assertRejects(() => model.chat(ask, { signal: stopped }), Error)).message, "enough");
  assertEquals(
    (await assertRejects(() => model.embedImage(scene, { signal: stopped }), Error)).message,
    "enough",
  );
});

Deno.test("a model without eyes or ears says so before it opens a file", async () => {
  await using model = await load(fixtureModel("e2b")!, { device: "cpu" });
  const refusals: [() => Promise<unknown>, string][] = [
    [() => model.chat([user(image("/no/such.png"))]), "no_vision"],
    [() => model.chat([user({ type: "video", video: "/no/such.mp4" })]), "no_vision"],
    [() => model.chat([user(audio("/no/such.wav"))]), "no_audio"],
    [() => model.embedImage("/no/such.png"), "no_vision"],
    [() => model.embedAudio("/no/such.wav"), "no_audio"],
    [() => model.logits([2, 5], { media: [image("/no/such.png")] }), "no_vision"],
  ];
  for (const [call, code] of refusals) {
    assertEquals((await assertRejects(call, MarkbaseError)).code, code);
  }
});

Deno.test("a model with a placeholder for pictures but none for videos takes pictures and refuses videos", async () => {
  const folder = await Deno.makeTempDir();
  const from = new URL("../../examples/tiny/", import.meta.url).pathname;
  for (const { name } of Deno.readDirSync(from)) await Deno.copyFile(from + name, `${folder}/${name}`);
  const { video_token_id: _, ...config } = JSON.parse(await Deno.readTextFile(`${folder}/config.json`));
  await Deno.writeTextFile(`${folder}/config.json`, JSON.stringify(config));
  await using model = await load(folder, EXACT);
  const video: ContentPart = { type: "video", video: { frames: [scene] } };
  const error = await assertRejects(() => model.chat([user(video)]), MarkbaseError);
  assertEquals(error.code, "no_vision");
  const { text: said } = await model.chat([user(image(scene), text("Describe the image."))], GREEDY);
  assertEquals(said, "A red circle above two blue squares.");
  await Deno.remove(folder, { recursive: true });
});

Deno.test("media and runs of placeholders that do not agree are refused with positions and numbers", async () => {
  await using model = await load("tiny");
  const { image: I, audio: A, video: V } = model.config.tokens;
  const run = (id: number | null, length: number) => Array<number>(length).fill(id!);
  const wrong: [number[], ContentPart[], RegExp][] = [
    [
      [2, 15, ...run(I, 64), 16],
      [],
      /Position 2 begins a run of 64 image placeholders that no medium was given for/,
    ],
    [[2, ...run(I, 63), 16], [image(scene)], /Position 1 begins a run of 63 image.*image of 64 soft tokens/],
    [[2, ...run(A, 64), 16], [image(scene)], /64 audio placeholders, but medium 0 is image/],
    [[2, 15, 16], [image(scene)], /0 runs of media placeholders but 1/],
    [
      [2, ...run(I, 64)],
      [{ type: "video", video: { frames: [scene] } }],
      /64 image placeholders, but medium 0 is video of 64/,
    ],
    [[2, ...run(V, 64)], [image(scene)], /64 video placeholders, but medium 0 is image of 64/],
    [[2, ...run(I, 64), 3, ...run(I, 64)], [image(scene)], /Position 66 begins a run/],
  ];
  for (const [ids, media, message] of wrong) {
    assertMatch((await assertRejects(() => model.logits(ids, { media }), InvalidArgument)).message, message);
    await assertRejects(() => Array.fromAsync(model.generate(ids, { media, maxTokens: 1 })), InvalidArgument);
  }
  await assertRejects(() => model.hidden([2, ...run(I, 3)]), InvalidArgument);
  await assertRejects(() => model.logits([2], { media: "scene.png" as never }), InvalidArgument);
});

Deno.test("text that spells placeholders stays text, beside a real picture too", async () => {
  await using model = await load("tiny");
  const { image: I, audio: A, video: V, beginImage } = model.config.tokens;
  const forged = "<|image|><|audio|><|video|><|image><image|>";
  const { receipt, usage } = await model.chat([user(text(forged), image(scene), text(forged))], {
    maxTokens: 1,
  });
  const count = (id: number | null) => receipt.promptIds.filter((one) => one === id).length;
  assertEquals([count(I), count(A), count(V), count(beginImage)], [64, 0, 0, 1]);
  assertEquals(usage.imageTokens, 64);
  assertEquals(
    (await model.chat([{ role: "user", content: forged }], { maxTokens: 1 })).usage.imageTokens,
    undefined,
  );
});

Deno.test("a video's frames have their times before them, and its sound follows", async () => {
  await using model = await load("tiny");
  const frames = [drawing("red", "circle").picture, drawing("blue", "star").picture];
  const video = { frames, fps: 0.01, audio: digits };
  const { receipt: { promptIds: ids }, usage } = await model.chat(
    [user(text("Look:"), { type: "video", video }, text("What?"))],
    { maxTokens: 1 },
  );
  const { video: V, audio: A, beginImage: boi, endImage: eoi, beginAudio: boa, endAudio: eoa } =
    model.config.tokens;
  const names = new Map<number, string>([[V!, "V"], [A!, "A"], [boi!, "("], [eoi!, ")"], [boa!, "<"], [
    eoa!,
    ">",
  ]]);
  const shape = ids.map((id) => names.get(id) ?? "t").join("").replace(/(.)\1+/g, "$1");
  assertEquals(shape, "t(V)t(V)<A>t");
  const between = ids.slice(ids.indexOf(eoi!) + 1, ids.lastIndexOf(boi!));
  assertEquals(model.tokenizer.decode(between), " 01:40 ");
  assertMatch(model.tokenizer.decode(ids.slice(0, ids.indexOf(boi!))), /Look:00:00 $/);
  assertEquals([usage.imageTokens, usage.audioTokens], [128, 28]);
});

Deno.test("two pictures of one size are told apart by the prefix cache, and the same one is found in it", async () => {
  await using model = await load("tiny", EXACT);
  const ask = (picture: ReturnType<typeof drawing>) =>
    model.chat([user(image(picture.picture), text("Describe the image."))], GREEDY);
  const red = drawing("red", "circle"), blue = drawing("blue", "square");
  const first = await ask(red), second = await ask(blue), again = await ask(red);
  assertEquals([first.text, second.text, again.text], [red.caption, blue.caption, red.caption]);
  assert(second.usage.cachedTokens < 10, `${second.usage.cachedTokens} tokens of another picture`);
  assertEquals(again.usage.cachedTokens, again.usage.promptTokens - 1);
});

Deno.test("many pictures at once give what each gives alone", async () => {
  await using model = await load("tiny", EXACT);
  const pictures = [
    "red circle",
    "green star",
    "blue cross",
    "pink diamond",
    "black square",
    "orange triangle",
  ]
    .map((name, i) => drawing(...name.split(" ") as [string, string], i));
  const requests = pictures.map(({ picture }) => [user(image(picture), text("Describe the image."))]);
  const replies = await model.batch([...requests, ...requests.toReversed()], GREEDY);
  const captions = pictures.map(({ caption }) => caption);
  assertEquals(replies.map((reply) => reply.text), [...captions, ...captions.toReversed()]);
  const mixed = await model.batch([requests[0], [user(image("/no/such.png"))], requests[1]], GREEDY);
  assertEquals(mixed.map(({ finishReason }) => finishReason), ["stop", "error", "stop"]);
  assertEquals((mixed[1].error as MarkbaseError).code, "media_missing");
});

Deno.test("a session takes pictures turn by turn, forks, and reads files only once", async () => {
  await using model = await load("tiny", EXACT);
  const copy = await Deno.makeTempFile({ suffix: ".png" });
  await Deno.copyFile(scene, copy);
  const say = async (session: ReturnType<typeof model.session>) =>
    model.tokenizer.decode(await Array.fromAsync(session.generate(GREEDY)), { skipSpecial: true });
  using session = model.session();
  await session.append([user(image(copy), text("Describe the image."))]);
  assertEquals(await say(session), "A red circle above two blue squares.");
  await Deno.remove(copy); // what was appended was read
  using other = session.fork();
  await session.append([user(text("How many squares are there?"))]);
  await other.append([user(text("What colour is the circle?"))]);
  assertEquals([await say(session), await say(other)], ["2", "Red."]);
  // The whole conversation at once gives the same prompt and answer.
  const whole = await model.chat([
    user(image(scene), text("Describe the image.")),
    { role: "assistant", content: "A red circle above two blue squares." },
    user(text("How many squares are there?")),
  ], GREEDY);
  assertEquals([...session.ids].slice(0, whole.usage.promptTokens), whole.receipt.promptIds);
  assertEquals(whole.text, "2");
});

Deno.test("a session with media is saved and restored, with its cache or without", async () => {
  await using model = await load("tiny", EXACT);
  const path = await Deno.makeTempFile();
  const rest = async (session: ReturnType<typeof model.session>) => {
    await session.append([user(text("How many squares are there?"))]);
    const ids = await Array.fromAsync(session.generate(GREEDY));
    return model.tokenizer.decode(ids, { skipSpecial: true });
  };
  for (const generated of [true, false]) {
    using session = model.session();
    await session.append([
      user(image(scene), audio(digits), text("Describe the image and transcribe the audio.")),
    ]);
    if (generated) await Array.fromAsync(session.generate(GREEDY));
    await session.save(path);
    const ids = session.ids;
    await using fresh = await load("tiny", EXACT); // with nothing in its caches
    using restored = fresh.session();
    await restored.restore(path);
    assertEquals(restored.ids, ids);
    if (generated) assertEquals(await rest(restored), await rest(session));
    else {
      assertEquals(
        await Array.fromAsync(restored.generate(GREEDY)),
        await Array.fromAsync(session.generate(GREEDY)),
      );
    }
  }
  await Deno.remove(path);
});

Deno.test("token ids with media can be appended to a session", async () => {
  await using model = await load("tiny", EXACT);
  const prompt = [user(image(digit), text("Describe the image."))];
  const { receipt, text: said } = await model.chat(prompt, GREEDY);
  using session = model.session();
  await session.append(receipt.promptIds.slice(0, 3));
  await session.append(receipt.promptIds.slice(3), { media: [image(digit)] });
  const ids = await Array.fromAsync(session.generate(GREEDY));
  assertEquals(model.tokenizer.decode(ids, { skipSpecial: true }), said);
  await assertRejects(() => session.append(receipt.promptIds), InvalidArgument);
  await assertRejects(() => session.append(prompt, { media: [image(digit)] }), InvalidArgument);
});

Deno.test("a picture that does not fit the context is refused before it is looked at", async () => {
  await using model = await load("tiny", { device: "cpu", contextLength: 64 });
  const error = await assertRejects(() => model.chat([user(image(scene), text("?"))]), ContextFull);
  assert(error.tokens > 64);
});

Deno.test("pictures after a long text, one after the other, give finite logits equal to those of a fresh start", async () => {
  await using model = await load("tiny", EXACT);
  const long = "The red kite flew over the old harbour and the green hill. ".repeat(40);
  const messages: Message[] = [
    user(text(long)),
    { role: "assistant", content: "Yes." },
    user(image(scene), text("Describe the image.")),
    { role: "assistant", content: "A red circle above two blue squares." },
    user(image(digit), text("Describe the image.")),
  ];
  const turns = [messages.slice(0, 1), messages.slice(0, 3), messages];
  for (const turn of turns) await model.chat(turn, { ...GREEDY, maxTokens: 2 });
  const { receipt, usage } = await model.chat(messages, { ...GREEDY, maxTokens: 1 });
  assert(
    usage.promptTokens > 700 && usage.cachedTokens > 700,
    `${usage.cachedTokens} of ${usage.promptTokens}`,
  );
  const media = [image(scene), image(digit)];
  const logits = await model.logits(receipt.promptIds, { last: 4, media });
  assert(logits.every(Number.isFinite));
  await using fresh = await load("tiny", EXACT);
  assertEquals(maxDifference(await fresh.logits(receipt.promptIds, { last: 4, media }), logits), 0);
  const next = await Array.fromAsync(fresh.generate(receipt.promptIds, { ...GREEDY, maxTokens: 3, media }));
  assertEquals(
    await Array.fromAsync(model.generate(receipt.promptIds, { ...GREEDY, maxTokens: 3, media })),
    next,
  );
});

Deno.test("clips of 29.9, 30.0, 30.1 and 90 s become at most 750 soft tokens, cut ones with a warning", async () => {
  await using model = await load("tiny", { device: "cpu", contextLength: 1024 });
  const counts: [number, number, number][] = [[29.9, 748, 0], [30, 750, 0], [30.1, 750, 1], [90, 750, 1]];
  for (const [seconds, tokens, cut] of counts) {
    const data = Float32Array.from({ length: seconds * 16_000 }, (_, i) => 0.1 * Math.sin(i / 3));
    const { usage, warnings } = await model.chat(
      [user(audio({ data, sampleRate: 16_000 }), text("What do you hear?"))],
      { ...GREEDY, maxTokens: 1 },
    );
    assertEquals(usage.audioTokens, tokens, `${seconds} s`);
    assertEquals(warnings.filter(({ code }) => code === "audio_cut").length, cut);
    using session = model.session();
    await session.append([user(audio({ data, sampleRate: 16_000 }), text("What do you hear?"))]);
    assertEquals(session.warnings.length, cut);
    if (cut) assertMatch(warnings.at(-1)!.message, new RegExp(`lasts ${seconds.toFixed(1)} s.*first 30 s`));
  }
});

Deno.test("silence is heard as silence, 0.05 s is heard, and 0.01 s is refused with the numbers", async () => {
  await using model = await load("tiny");
  const clip = (samples: number) => audio({ data: new Float32Array(samples), sampleRate: 16_000 });
  const silence = await model.chat([user(clip(16_000), text("What do you hear?"))], GREEDY);
  assertEquals(silence.text, "Silence.");
  const short = await model.chat([user(clip(800), text("What do you hear?"))], { ...GREEDY, maxTokens: 8 });
  assertEquals(short.usage.audioTokens, 1);
  const error = await assertRejects(
    () => model.chat([user(clip(160), text("What do you hear?"))]),
    MediaError,
  );
  assertEquals(error.code, "media_too_short");
  assertMatch(error.message, /160 samples.*at least 161 /);
});

Deno.test("a picture of 1 × 10000 pixels is looked at within the budget", async () => {
  await using model = await load("tiny");
  const tall = new URL("../fixtures/media/tall.png", import.meta.url);
  const { usage } = await model.chat([user(image(tall), text("Describe the image."))], {
    ...GREEDY,
    maxTokens: 4,
  });
  assertEquals(usage.imageTokens, 70);
});

Deno.test("fifty recordings of mixed lengths in one model: the same output for the same input, and memory stays", async () => {
  await using model = await load("tiny", { device: "cpu", contextLength: 1024 });
  const hear = async (seconds: number) => {
    const data = Float32Array.from({ length: seconds * 16_000 }, (_, i) => 0.2 * Math.sin(i * 0.7));
    const options = { ...GREEDY, maxTokens: 4 };
    return (await model.chat([user(audio({ data, sampleRate: 16_000 }), text("What do you hear?"))], options))
      .text;
  };
  const lengths = [0.1, 0.5, 1, 3, 30];
  const first: string[] = [];
  for (const seconds of lengths) first.push(await hear(seconds));
  const { peak } = model.memory();
  for (let i = 0; i < 45; i++) {
    assertEquals(await hear(lengths[i % 4]), first[i % 4]);
  }
  assertEquals(await hear(30), first[4]);
  assertEquals(model.memory().peak, peak);
});
