/** Large pictures are decoded in a thread of their own. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { MediaError } from "../../mod.ts";
import { macrotask } from "../../src/event_loop.ts";
import { type Codec, decodeWith } from "../../src/media/codecs.ts";
import { decodeImage } from "../../src/media/decode_apart.ts";
import { until } from "../support/until.ts";
import { mediaBytes } from "./support.ts";

/** Pixels that make any picture a large one. */
const MANY = 1e9;
const FILES: [Codec, string][] = [
  ["png", "smooth.png"],
  ["jpeg", "smooth.jpg"],
  ["cmyk", "cmyk.jpg"],
  ["webp", "lossy.webp"],
  ["avif", "smooth.avif"],
  ["heic", "smooth.heic"],
];

Deno.test("every decoder gives in a thread of its own what it gives in the caller's, errors included", async () => {
  for (const [codec, name] of FILES) {
    const bytes = mediaBytes(name);
    const { data, width, height } = await decodeWith(codec, bytes);
    assertEquals(await decodeImage(codec, bytes, MANY), { data, width, height }, name);
    const damaged = bytes.subarray(0, bytes.length / 2);
    const usual = await assertRejects(() => decodeWith(codec, damaged), MediaError);
    const apart = await assertRejects(() => decodeImage(codec, damaged, MANY), MediaError);
    assertEquals([apart.code, apart.message], [usual.code, usual.message], name);
  }
});

Deno.test("while a large picture is decoded the event loop turns, and small ones need no thread", async () => {
  const bytes = mediaBytes("smooth.png");
  await decodeWith("png", bytes); // its package is there now
  const turnsOf = async (pixels: number) => {
    let turns = 0, decoded = false;
    const decoding = decodeImage("png", bytes, pixels).then(() => decoded = true);
    for (; !decoded; turns++) await macrotask();
    await decoding;
    return turns;
  };
  assert(await turnsOf(1e5) < 10);
  await until("this thread had the core while the other decoded", async () => await turnsOf(MANY) > 100);
});

Deno.test("a signal ends the thread of a large picture, and those that wait for it have their turns", async () => {
  const bytes = mediaBytes("smooth.heic");
  const reason = new Error("enough");
  let controller = new AbortController();
  await until("no picture was decoded before the signal", async () => {
    controller = new AbortController();
    const ended = [0, 1].map(() =>
      decodeImage("heic", bytes, MANY, controller.signal).catch((error) => error)
    );
    const next = decodeImage("heic", bytes, MANY);
    for (let i = 0; i < 10; i++) await macrotask();
    controller.abort(reason);
    const outcomes = await Promise.all(ended);
    for (const outcome of outcomes) assert(outcome === reason || outcome.width === 48, `${outcome}`);
    assertEquals((await next).width, 48);
    return outcomes.every((outcome) => outcome === reason);
  });
  const late = await decodeImage("heic", bytes, MANY, controller.signal).catch((error) => error);
  assertEquals(late, reason);
});

Deno.test("where no thread can be had, or its module fails, the caller's thread decodes", async () => {
  const bytes = mediaBytes("smooth.png");
  const { data } = await decodeWith("png", bytes);
  const { Worker } = globalThis;
  const failing = [
    class {
      constructor() {
        throw new TypeError("no threads here");
      }
    },
    class extends Worker {
      constructor() {
        super("data:text/javascript,throw new Error('not the module')", { type: "module" });
      }
    },
  ];
  for (const none of failing) {
    Object.assign(globalThis, { Worker: none });
    try {
      assertEquals((await decodeImage("png", bytes, MANY)).data, data);
    } finally {
      Object.assign(globalThis, { Worker });
    }
  }
});
