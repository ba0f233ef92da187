import { assert, assertEquals, assertMatch, assertRejects } from "@std/assert";
import { InvalidArgument, MediaError } from "../../mod.ts";
import type { MediaSource } from "../../src/media/inputs.ts";
import { readPicture } from "../../src/media/picture.ts";
import { sniff } from "../../src/media/sniff.ts";
import { readSound } from "../../src/media/sound.ts";
import { pathOf, readHead, readSource } from "../../src/media/source.ts";
import { readVideo } from "../../src/media/video.ts";
import { mediaBytes, mediaPath } from "./support.ts";

Deno.test("sources above a limit are refused with the numbers, however they come, without being read to the end", async () => {
  let sent = 0;
  const server = Deno.serve({ port: 0, onListen() {} }, () => {
    const body = new ReadableStream({
      pull(controller) {
        sent += 65_536;
        controller.enqueue(new Uint8Array(65_536));
      },
    });
    return new Response(body);
  });
  const sources = [
    `http://localhost:${server.addr.port}/endless`,
    mediaPath("s16.wav"),
    mediaBytes("s16.wav"),
    new Blob([mediaBytes("s16.wav")]),
    `data:;base64,${mediaBytes("s16.wav").toBase64()}`,
  ];
  for (const source of sources) {
    const error = await assertRejects(() => readSource(source, { limit: 20_000 }), MediaError);
    assertEquals(error.code, "media_too_large");
    assertMatch(error.message, /has \d+ bytes or more; 20000 are allowed/);
  }
  await server.shutdown();
  assertEquals(sent < 2 ** 24, true, `${sent} bytes were sent`);
});

Deno.test("what a server refuses, and a fetch that is cancelled, end with the status or the signal's reason", async () => {
  const server = Deno.serve({ port: 0, onListen() {} }, async (request) => {
    const { pathname } = new URL(request.url);
    if (pathname === "/slow") await new Promise((resolve) => setTimeout(resolve, 500));
    if (pathname === "/round") return new Response(null, { status: 302, headers: { location: "/round" } });
    if (pathname === "/away") {
      return new Response(null, { status: 302, headers: { location: "file:///etc/passwd" } });
    }
    return new Response("no", { status: pathname === "/slow" ? 200 : 404 });
  });
  const host = `http://localhost:${server.addr.port}`;
  const messages: [string, RegExp][] = [
    ["/none", /HTTP status 404/],
    ["/round", /redirects more than 10 times/],
    ["/away", /redirects to file:/],
  ];
  for (const [path, message] of messages) {
    const error = await assertRejects(() => readSource(host + path, { limit: 1e6 }), MediaError);
    assertEquals(error.code, "media_unreadable");
    assertMatch(error.message, message);
  }
  const stop = new AbortController();
  setTimeout(() => stop.abort(new Error("enough")), 50);
  const slow = await assertRejects(
    () => readSource(`${host}/slow`, { limit: 1e6, signal: stop.signal }),
    Error,
  );
  assertEquals(slow.message, "enough");
  await server.shutdown();
});

Deno.test({
  name:
    "an abort ends the wait for a pipe that nobody opens or writes to, and one that is written to is read",
  ignore: Deno.build.os === "windows",
  async fn() {
    const folder = await Deno.makeTempDir();
    const [path, other] = [`${folder}/pipe`, `${folder}/other`];
    await new Deno.Command("mkfifo", { args: [path, other] }).output();
    const read = (path: string, milliseconds: number) =>
      readSource(path, { limit: 1e6, signal: AbortSignal.timeout(milliseconds) });
    await assertRejects(() => read(path, 20), DOMException, "timeout");
    const controller = new AbortController();
    const called = readSource(path, { limit: 1e6, signal: controller.signal });
    controller.abort(); // while it asks for the permission
    await assertRejects(() => called, DOMException, "aborted");
    const stop = new AbortController();
    const stalled = assertRejects(
      () => readSource(path, { limit: 1e6, signal: stop.signal }),
      DOMException,
      "aborted",
    );
    {
      using writer = await Deno.open(path, { write: true });
      await writer.write(mediaBytes("smooth.png").subarray(0, 10));
      await new Promise((resolve) => setTimeout(resolve, 50)); // these are read
      stop.abort();
      await stalled;
    }
    const [bytes] = await Promise.all([
      read(other, 60_000),
      Deno.writeFile(other, mediaBytes("smooth.png")),
    ]);
    assertEquals(bytes, mediaBytes("smooth.png"));
    await Deno.remove(folder, { recursive: true });
  },
});

Deno.test("paths are told from URLs, drive letters and colons included", () => {
  assertEquals(pathOf("photo.jpg"), "photo.jpg");
  assertEquals(pathOf("C:\\photos\\a.jpg"), "C:\\photos\\a.jpg");
  assertEquals(pathOf("12:30.wav"), "12:30.wav");
  assertEquals(pathOf("data.png"), "data.png");
  assertEquals(pathOf(new URL("file:///tmp/a%20b.png")), "/tmp/a b.png");
  assertEquals(pathOf("file:///tmp/a%20b.png"), "/tmp/a b.png");
  for (const url of ["https://example.com/a.png", "data:,x", "blob:null/1", "ftp://example.com/a"]) {
    assertEquals(pathOf(url), undefined);
  }
});

Deno.test("formats are told from the first bytes, whatever the name says", async () => {
  const formats: Record<string, string> = {
    "smooth.png": "png",
    "smooth.jpg": "jpeg",
    "lossy.webp": "webp",
    "animated.webp": "webp",
    "still.gif": "gif",
    "smooth.avif": "avif",
    "smooth.heic": "heic",
    "s16.wav": "wav",
    "tone.mp3": "mp3",
    "tone.flac": "flac",
    "tone.ogg": "ogg",
    "tone.opus": "ogg",
    "expected.json": "undefined",
  };
  for (const [name, format] of Object.entries(formats)) {
    assertEquals(String(sniff(await readHead(mediaPath(name), undefined))), format, name);
  }
  const beginnings: [string, number[] | string][] = [
    ["caf", "caff\x00\x01"],
    ["flv", "FLV\x01"],
    ["asf", [0x30, 0x26, 0xb2, 0x75, 0x8e, 0x66, 0xcf, 0x11, 0xa6, 0xd9]],
  ];
  for (const [format, bytes] of beginnings) {
    const head = typeof bytes === "string" ? [...new TextEncoder().encode(bytes)] : bytes;
    assertEquals(sniff(Uint8Array.from(head)), format);
  }
  for (const time of [0, 4]) { // packets of a transport stream, with the time before each or without
    const packets = new Uint8Array(1000);
    for (let at = time; at < packets.length; at += 188 + time) packets[at] = 0x47;
    assertEquals(sniff(packets), "mpeg", `${time}`);
  }
  const tags = new Uint8Array(10 * 100_000); // one in front of the other
  for (let at = 0; at < tags.length; at += 10) tags.set(new TextEncoder().encode("ID3"), at);
  assertEquals(sniff(tags), "mp3");
  assertEquals(sniff(new Uint8Array([...tags.subarray(0, 30), ...mediaBytes("tone.flac")])), "flac");
  const tagged = new Uint8Array([
    ...new TextEncoder().encode("ID3"),
    4,
    0,
    0,
    0,
    0,
    0,
    3,
    1,
    2,
    3,
    ...mediaBytes("tone.mp3"),
  ]);
  assertEquals(sniff(tagged), "mp3");
  assertEquals(sniff(new Uint8Array()), undefined);
  const brands = (...names: string[]) =>
    new TextEncoder().encode(`\0\0\0${String.fromCharCode(12 + 4 * names.length)}ftyp${names.join("")}`);
  assertEquals(sniff(brands("MiHB", "\0\0\0\0", "mif1", "heix")), "heic");
  assertEquals(sniff(brands("mif1", "\0\0\0\0", "miaf", "avif")), "avif");
  assertEquals(sniff(brands("qt  ", "\0\0\0\0", "qt  ", "hvc1")), "mp4");
  for (let length = 1; length < 64; length++) sniff(mediaBytes("smooth.avif").subarray(0, length));
});

Deno.test("a sound and a video come in every form that a picture does, under any name and type", async () => {
  const folder = await Deno.makeTempDir();
  const server = Deno.serve({ port: 0, onListen() {} }, (request) => {
    const { pathname } = new URL(request.url);
    return new Response(mediaBytes(pathname.slice(1)), { headers: { "content-type": "text/plain" } });
  });
  const forms = async (name: string, lie: string) => {
    const bytes = mediaBytes(name), path = `${folder}/${lie}`;
    await Deno.writeFile(path, bytes);
    const url = `http://localhost:${server.addr.port}/${name}`;
    const blob = new Blob([bytes], { type: "image/jpeg" });
    const object = URL.createObjectURL(blob);
    const data = `data:application/pdf;base64,${bytes.toBase64()}`;
    const file = new URL(`file://${path}`);
    return [path, file, file.href, url, new URL(url), data, blob, object, bytes, bytes.buffer];
  };
  for (const source of await forms("s16.wav", "sound.mp3")) {
    assertEquals((await readSound(source)).samples.length, 4000, String(source).slice(0, 40));
  }
  for (const source of await forms("tone.flac", "sound.wav")) {
    assertEquals((await readSound(source)).samples.length, 4000, String(source).slice(0, 40));
  }
  for (const source of await forms("animated.webp", "video.mp4")) {
    const { frames } = await readVideo(source, { frames: 8, sound: true });
    assertEquals((await Array.fromAsync(frames)).length, 3, String(source).slice(0, 40));
  }
  for (const source of await forms("smooth.avif", "picture.svg")) {
    assertEquals((await readPicture(source)).width, 48, String(source).slice(0, 40));
  }
  await server.shutdown();
  await Deno.remove(folder, { recursive: true });
});

Deno.test({
  name: "what comes through a pipe is read once, as a picture, a sound or a video",
  ignore: Deno.build.os === "windows",
  fn: async () => {
    const folder = await Deno.makeTempDir();
    const pipe = `${folder}/pipe`;
    assertEquals((await new Deno.Command("mkfifo", { args: [pipe] }).output()).success, true);
    const through = async <T>(name: string, read: (path: string) => Promise<T>): Promise<T> => {
      const writing = new Deno.Command("cp", { args: [mediaPath(name), pipe] }).spawn();
      const result = await read(pipe);
      await writing.status;
      return result;
    };
    const { width } = await through("smooth.png", (path) => readPicture(path));
    const { samples } = await through("s16.wav", (path) => readSound(path));
    const frames = await through("animated.gif", async (path) => {
      const video = await readVideo(path, { frames: 9, sound: false });
      return await Array.fromAsync(video.frames);
    });
    assertEquals([width, samples.length, frames.length], [48, 4000, 3]);
    await Deno.remove(folder, { recursive: true });
  },
});

Deno.test("a file of no bytes is empty in every form, whatever it is taken for", async () => {
  const path = await Deno.makeTempFile({ suffix: ".mp4" });
  const server = Deno.serve({ port: 0, onListen() {} }, () => new Response(""));
  const forms = [path, new Blob([]), new Uint8Array(), new ArrayBuffer(0), "data:image/png;base64,"];
  const host = `http://localhost:${server.addr.port}/`;
  for (const source of [...forms, host]) {
    for (
      const read of [
        readPicture,
        readSound,
        (input: MediaSource) => readVideo(input, { frames: 1, sound: true }),
      ]
    ) {
      const error = await assertRejects(() => read(source), MediaError);
      assertEquals(error.code, "media_empty", String(source));
    }
  }
  await server.shutdown();
  await Deno.remove(path);
});

Deno.test("base64 without its data: is told from a path, with a short message and without a permission", async () => {
  const text = mediaBytes("noise.gif").toBase64();
  assert(text.length > 4096);
  for (
    const read of [
      readPicture,
      readSound,
      (input: MediaSource) => readVideo(input, { frames: 1, sound: true }),
    ]
  ) {
    const { message } = await assertRejects(() => read(text), InvalidArgument);
    assertMatch(message, new RegExp(`has ${text.length} characters and is no path.*write data:;base64,`));
    assert(message.length < 300);
  }
  assertEquals(await readPicture(`data:;base64,${text}`), await readPicture(mediaPath("noise.gif")));
});
