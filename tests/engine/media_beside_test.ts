/** Calls with media beside others: one tower for all, cancelled, failed, disposed of, and streams that go on between its layers. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { Pass } from "../../ffi/pass.ts";
import { Disposed, MarkbaseError, type Message } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import { EXACT } from "../support/calls.ts";
import { maxDifference, TINY } from "../support/models.ts";
import { audio, counted, FIXTURES, GREEDY, image, text, user } from "./media_calls.ts";

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

Deno.test("a call that is cancelled inside a tower ends soon, and calls beside and after it are as ever", async () => {
  const { model } = await counted();
  await using _ = model;
  const large = { data: new Uint8Array(1200 * 1200 * 3).map((_, i) => i % 251), width: 1200, height: 1200 };
  const options = { imageTokens: 560 };
  let runs = 0;
  const forget = async () => {
    model.media.keptBytes = 0;
    await model.embedImage(`${FIXTURES}scene.png`); // which drops what was kept
  };
  const embedded = async () => {
    await forget();
    using watched = new WatchedRuns();
    const soft = await model.embedImage(large, options);
    runs = watched.towerRuns;
    return soft;
  };
  const whole = await embedded();
  assert(runs > 2, `${runs} runs`);
  await forget();
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
