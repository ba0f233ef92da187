/** Later turns with media: what the cache holds needs no tower, and calls at the same time do not touch each other. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { Pass } from "../../ffi/pass.ts";
import { type ContentPart, Disposed, type LoadOptions, MarkbaseError, type Message } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import { draw, random, randomScene } from "../../examples/media/draw.ts";
import { EXACT } from "../support/calls.ts";
import { maxDifference, TINY } from "../support/models.ts";

const FIXTURES = new URL("../fixtures/tiny/", import.meta.url).pathname;
const GREEDY = { temperature: 0 } as const;
const image = (name: string): ContentPart => ({ type: "image", image: `${FIXTURES}${name}.png` });
const audio = (name: string): ContentPart => ({ type: "audio", audio: `${FIXTURES}${name}.wav` });
const text = (text: string): ContentPart => ({ type: "text", text });
const user = (...content: ContentPart[]): Message => ({ role: "user", content });
const assistant = (content: string): Message => ({ role: "assistant", content });

/** A model and how often its towers ran. */
async function counted(
  options: LoadOptions = {},
): Promise<{ model: LoadedModel; runs: { image: number; audio: number } }> {
  const model = await loadWith(TINY, { ...EXACT, ...options }, {});
  const { towers } = model.engine;
  const runs = { image: 0, audio: 0 };
  const [see, hear] = [towers.embedImage.bind(towers), towers.embedAudio.bind(towers)];
  towers.embedImage = (...args) => (runs.image++, see(...args));
  towers.embedAudio = (...args) => (runs.audio++, hear(...args));
  return { model, runs };
}

/** Notes runs of passes, until it is disposed of: those made from here on are of towers. */
class WatchedRuns implements Disposable {
  readonly #compile = Device.prototype.compile;
  readonly #run = Pass.prototype.run;
  readonly #runSync = Pass.prototype.runSync;
  readonly #towers = new Set<Pass>();
  /** what ran, in the order in which the runs ended */
  readonly order: ("tower" | "text")[] = [];
  /** passes of the device, whenever one of a tower was made */
  readonly alive: number[] = [];

  /** `begun` is called before each run of a tower. */
  constructor(begun: () => void = () => {}) {
    const { order, alive } = this;
    const towers = this.#towers, compile = this.#compile, run = this.#run, runSync = this.#runSync;
    Device.prototype.compile = async function (...given) {
      const pass = await compile.apply(this, given);
      towers.add(pass);
      alive.push(this.memory().livePasses);
      return pass;
    };
    Pass.prototype.run = async function (...given) {
      if (towers.has(this)) begun();
      const result = await run.apply(this, given);
      order.push(towers.has(this) ? "tower" : "text");
      return result;
    };
    Pass.prototype.runSync = function (...given) {
      order.push("text");
      return runSync.apply(this, given);
    };
  }

  /** Runs of towers that have ended. */
  get towerRuns(): number {
    return this.order.filter((kind) => kind === "tower").length;
  }

  [Symbol.dispose](): void {
    Device.prototype.compile = this.#compile;
    Pass.prototype.run = this.#run;
    Pass.prototype.runSync = this.#runSync;
  }
}

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

Deno.test("calls with one new picture at the same time run its tower once, and the abort of one leaves the others theirs", async () => {
  const { model, runs } = await counted();
  await using _ = model;
  const { media, engine: { towers } } = model;
  media.keptBytes = 0;
  const stop = new AbortController();
  const all = Promise.withResolvers<void>();
  let asking = 0;
  const place = media.place.bind(media);
  media.place = (spans) =>
    place(spans).map((medium) => ({
      ...medium,
      embed(signal) {
        const soft = medium.embed(signal);
        if (++asking === 3) all.resolve();
        return soft;
      },
    }));
  const see = towers.embedImage;
  towers.embedImage = async (...args) => {
    await all.promise;
    stop.abort(new Error("no longer wanted"));
    return await see(...args);
  };
  const ask = [user(image("scene"), text("Describe the image."))];
  const first = assertRejects(
    () => model.chat(ask, { ...GREEDY, signal: stop.signal }),
    Error,
    "no longer wanted",
  );
  const others = await Promise.all([model.chat(ask, GREEDY), model.chat(ask, GREEDY)]);
  await first;
  for (const { text } of others) assertEquals(text, "A red circle above two blue squares.");
  assertEquals(runs, { image: 1, audio: 0 });
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

Deno.test("a call that is cancelled inside a tower ends soon, and calls beside and after it are as ever", async () => {
  const { model } = await counted();
  await using _ = model;
  const large = { data: new Uint8Array(1200 * 1200 * 3).map((_, i) => i % 251), width: 1200, height: 1200 };
  const options = { imageTokens: 560 };
  let runs = 0;
  const embedded = async () => {
    model.media.keptBytes = 0;
    await model.embedImage(`${FIXTURES}scene.png`); // which drops what was kept
    using watched = new WatchedRuns();
    const soft = await model.embedImage(large, options);
    runs = watched.towerRuns;
    return soft;
  };
  const whole = await embedded();
  assert(runs > 2, `${runs} runs`);
  model.media.keptBytes = 0;
  await model.embedImage(`${FIXTURES}scene.png`);
  const stop = new AbortController();
  {
    let begun = 0;
    using watched = new WatchedRuns(() => ++begun === 2 && stop.abort(new Error("no longer wanted")));
    await assertRejects(
      () =>
        model.chat([user({ type: "image", image: large }, text("?"))], { signal: stop.signal, ...options }),
      Error,
      "no longer wanted",
    );
    assertEquals(watched.towerRuns, 1);
  }
  const again = new AbortController();
  const { towers } = model.engine;
  const see = towers.embedImage.bind(towers);
  towers.embedImage = (input, given) => {
    if (input.columns > 60) setTimeout(() => again.abort(new Error("no longer wanted")), 1);
    return see(input, given);
  };
  const cancelled = assertRejects(
    () =>
      model.chat([user({ type: "image", image: large }, text("?"))], { signal: again.signal, ...options }),
    Error,
    "no longer wanted",
  );
  const beside = model.chat([user(image("scene"), text("Describe the image."))], GREEDY);
  await cancelled;
  towers.embedImage = see;
  assertEquals((await beside).text, "A red circle above two blue squares.");
  assertEquals(maxDifference(await embedded(), whole), 0);
});

Deno.test("a session whose tower was cancelled, or failed, is as it was and goes on", async () => {
  const { model, runs } = await counted();
  await using _ = model;
  const { towers } = model.engine;
  using session = model.session();
  await session.append([user(image("scene"), text("Describe the image."))]);
  const { ids } = session;
  const see = towers.embedImage;
  const stop = new AbortController();
  towers.embedImage = (...args) => (stop.abort(new Error("not now")), see(...args));
  const stopped = () => Array.fromAsync(session.generate({ ...GREEDY, signal: stop.signal }));
  await assertRejects(stopped, Error, "not now");
  towers.embedImage = () => Promise.reject(new MarkbaseError("device_failed", "The device failed."));
  await assertRejects(() => Array.fromAsync(session.generate(GREEDY)), MarkbaseError, "The device failed.");
  towers.embedImage = see;
  assertEquals(session.ids, ids);
  const said = await Array.fromAsync(session.generate(GREEDY));
  assertEquals(model.tokenizer.decode(said, { skipSpecial: true }), "A red circle above two blue squares.");
  assertEquals(runs.image, 2);
});

Deno.test("many calls with media at once, one of them cancelled and one wrong, give what each gives alone", async () => {
  const { model } = await counted();
  await using _ = model;
  const requests: Message[][] = [
    [user(image("scene"), text("Describe the image."))],
    [user(audio("digits"), text("Transcribe the audio."))],
    [user(image("wide"), text("Describe the image."))],
    [user(image("digit"), audio("digits"), text("Describe the image and transcribe the audio."))],
    [user(text("What is 27 + 45?"))],
  ];
  const alone: string[] = [];
  for (const messages of requests) alone.push((await model.chat(messages, GREEDY)).text);
  const fresh = await counted();
  await using _fresh = fresh.model;
  const stop = new AbortController();
  const cancelled = assertRejects(
    () => fresh.model.chat([user(image("digit"), text("Tell me a story."))], { signal: stop.signal }),
    Error,
    "enough",
  );
  const wrong = assertRejects(() => fresh.model.chat([user(image("none"))]), Error, "does not exist");
  const calls = [...requests, ...requests].map((messages) => fresh.model.chat(messages, GREEDY));
  setTimeout(() => stop.abort(new Error("enough")), 5);
  const replies = await Promise.all(calls);
  assertEquals(replies.map((reply) => reply.text), [...alone, ...alone]);
  await Promise.all([cancelled, wrong]);
});

Deno.test("a model that is disposed while a tower works rejects the call, and a later one too", async () => {
  const { model } = await counted();
  const { towers } = model.engine;
  const see = towers.embedImage.bind(towers);
  towers.embedImage = (...args) => {
    const result = see(...args);
    model[Symbol.dispose]();
    return result;
  };
  const ask = [user(image("scene"), text("Describe the image."))];
  await assertRejects(() => model.chat(ask, GREEDY), Disposed);
  await assertRejects(() => model.chat(ask, GREEDY), Disposed);
  await model[Symbol.asyncDispose]();
});

Deno.test("a stream gets tokens between the layers of a tower, which holds the scratch of one layer at a time", async () => {
  await using model = await loadWith(TINY, { ...EXACT, contextLength: 2048 }, { keptPrefixes: 0 });
  using watched = new WatchedRuns();
  const { order, alive } = watched;
  const stop = new AbortController();
  let begun = () => {};
  const first = new Promise<void>((resolve) => begun = resolve);
  const streaming = (async () => {
    const options = { temperature: 0, ignoreEos: true, maxTokens: 1900, signal: stop.signal };
    for await (const _ of model.generate([2, 5, 6], options)) begun();
  })().catch((error) => error);
  await first;
  const picture = { data: new Uint8Array(3 * 800 * 800), width: 800, height: 800 };
  await model.embedImage(picture, { imageTokens: 280 });
  stop.abort();
  await streaming;
  const within = order.slice(order.indexOf("tower"), order.lastIndexOf("tower") + 1);
  assert(watched.towerRuns > 2, `${watched.towerRuns} runs`);
  assert(within.length > watched.towerRuns, `${within}`);
  assertEquals(new Set(alive).size, 1, `${alive}`);
});
