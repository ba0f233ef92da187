import { assert, assertEquals, assertMatch, assertRejects } from "@std/assert";
import { InvalidArgument, MediaError } from "../../mod.ts";
import { sampledFrames } from "../../src/media/frames.ts";
import type { VideoInput } from "../../src/media/inputs.ts";
import { prepareVideo } from "../../src/media/prepare.ts";
import { timestamp } from "../../src/media/spans.ts";
import type { Picture } from "../../src/media/resize.ts";
import { readSound } from "../../src/media/sound.ts";
import { readPicture } from "../../src/media/picture.ts";
import { readVideo } from "../../src/media/video.ts";
import { expectedPicture, mediaBytes, mediaPath, pixelDistance, VISION } from "./support.ts";
import { hasFfmpeg } from "../support/process.ts";

async function framesOf(input: VideoInput, frames = 32, sound = false) {
  const video = await readVideo(input, { frames, sound });
  const all: { picture: Picture; time: number }[] = [];
  for await (const frame of video.frames) all.push({ ...frame, picture: frame.picture });
  return { frames: all, sound: await video.sound() };
}

Deno.test("frames are sampled as the reference does, and all of a short video", () => {
  assertEquals(sampledFrames(7, 3), [0, 2, 4]);
  assertEquals(sampledFrames(6, 3), [0, 2, 4]);
  assertEquals(sampledFrames(4, 2), [0, 2]);
  assertEquals(sampledFrames(100, 4), [0, 25, 50, 75]);
  assertEquals(sampledFrames(2, 32), [0, 1]);
});

Deno.test("times are minutes and seconds, rounded down", () => {
  assertEquals([0, 0.999, 59.99, 60, 3725].map(timestamp), ["00:00", "00:00", "00:59", "01:00", "62:05"]);
});

Deno.test("an animated GIF and an animated WebP give every frame as it is seen, at its time", async () => {
  for (const name of ["animated.gif", "animated.webp"]) {
    const { frames, sound } = await framesOf(mediaPath(name));
    assertEquals(frames.map(({ time }) => time), [0, 0.5, 1], name);
    frames.forEach(({ picture }, i) =>
      assertEquals(pixelDistance(picture, expectedPicture(`animated${i}`)), 0, `${name}, frame ${i}`)
    );
    assertEquals(sound, undefined);
  }
  const { frames } = await framesOf(mediaBytes("animated.gif"), 2);
  assertEquals(frames.map(({ time }) => time), [0, 0.5]);
  assertEquals(pixelDistance(frames[1].picture, expectedPicture("animated1")), 0);
  assertEquals((await framesOf(mediaPath("still.gif"))).frames.length, 1);
  assertEquals((await framesOf(mediaPath("lossless.webp"))).frames.length, 1);
});

Deno.test("frames given as pictures are sampled with the times of their rate", async () => {
  const picture = mediaBytes("smooth.png");
  const { frames } = await framesOf({ frames: [picture, picture, picture, picture], fps: 2 }, 2);
  assertEquals(frames.map(({ time }) => time), [0, 1]);
  assertEquals((await framesOf({ frames: [picture, picture] })).frames[1].time, 1 / 24);
});

Deno.test("floats of 0–1, floats of 0–255 and bytes give equal frames, of the video's own number of soft tokens", async () => {
  const { pixels, width, height } = expectedPicture("smooth.png");
  const frames = [
    { data: pixels, width, height },
    { data: Float32Array.from(pixels, (p) => p / 255), width, height },
    { data: Float32Array.from(pixels), width, height },
  ];
  const vision = VISION;
  const { spans } = await prepareVideo({ frames, fps: 1 }, { vision, audio: null }, {});
  assertEquals(new Set(spans.map(({ key }) => key)).size, 1);
  assertEquals(spans.map(({ kind, tokens }) => [kind, tokens]), Array(3).fill(["video", 63]));
  const audio = { kind: "mel" } as const;
  const heard = await prepareVideo({ frames, audio: mediaPath("s16.wav") }, { vision, audio }, {});
  assertEquals(heard.spans.map(({ kind }) => kind), ["video", "video", "video", "audio"]);
});

Deno.test("what is no video, or has no frames, is refused", async () => {
  const cases: [unknown, RegExp][] = [
    [{ frames: [] }, /1 to 100000 pictures/],
    [{ frames: [mediaBytes("smooth.png")], fps: 0 }, /fps of the video is 0/],
    [{}, /frames, fps/],
    [7, /path, a URL/],
  ];
  for (const [input, message] of cases) {
    const error = await assertRejects(() => framesOf(input as VideoInput), InvalidArgument);
    assertMatch(error.message, message);
  }
  const picture = await assertRejects(() => framesOf(mediaPath("smooth.png")), MediaError);
  assertEquals(picture.code, "unsupported_media");
  const text = await assertRejects(
    () => framesOf(new TextEncoder().encode("#EXTM3U\nfile:///etc/passwd")),
    MediaError,
  );
  assertEquals(text.code, "unknown_media");
  assertEquals((await assertRejects(() => framesOf("/no/such.mp4"), MediaError)).code, "media_missing");
});

Deno.test("an animation of too many pixels is refused with the numbers before it is decoded", async () => {
  // One frame of a large canvas, repeated.
  const still = mediaBytes("still.gif");
  const view = new DataView(still.buffer);
  view.setUint16(6, 9000, true);
  view.setUint16(8, 9000, true);
  const frame = still.subarray(still.lastIndexOf(0x2c), -1);
  const head = still.subarray(0, still.lastIndexOf(0x2c));
  const bytes = new Uint8Array(head.length + 100 * frame.length + 1);
  bytes.set(head);
  for (let i = 0; i < 100; i++) bytes.set(frame, head.length + i * frame.length);
  bytes[bytes.length - 1] = 0x3b;
  const error = await assertRejects(() => framesOf(bytes, 64), MediaError);
  assertEquals(error.code, "media_too_large");
  assertMatch(error.message, /9000 × 9000/);
});

/** A GIF or WebP whose last frame comes `count` times more. */
function longAnimation(name: string, count: number): Uint8Array {
  const bytes = mediaBytes(name);
  const [from, to] = name.endsWith("gif")
    ? [bytes.lastIndexOf(0x21), bytes.length - 1] // its graphics block, before the byte that ends the file
    : [new TextDecoder("latin1").decode(bytes).lastIndexOf("ANMF"), bytes.length];
  const frame = bytes.subarray(from, to);
  const long = new Uint8Array(bytes.length + count * frame.length);
  long.set(bytes.subarray(0, to));
  for (let i = 0; i < count; i++) long.set(frame, to + i * frame.length);
  if (name.endsWith("gif")) long[long.length - 1] = 0x3b;
  else new DataView(long.buffer).setUint32(4, long.length - 8, true);
  return long;
}

Deno.test("a frame of an animated WebP that is too short for its header is damaged", async () => {
  const bytes = mediaBytes("animated.webp");
  const frame = new TextDecoder("latin1").decode(bytes).lastIndexOf("ANMF");
  for (const size of [0, 1, 15]) {
    const short = bytes.slice(0, frame + 8 + 16);
    const view = new DataView(short.buffer);
    view.setUint32(4, short.length - 8, true);
    view.setUint32(frame + 4, size, true);
    for (const read of [() => framesOf(short), () => readPicture(short)]) {
      const error = await assertRejects(read, MediaError);
      assertMatch(error.message, new RegExp(`a frame has ${size} bytes`));
    }
  }
});

Deno.test("an animation of thousands of frames is sampled at even distances, and ends with its signal", async () => {
  for (const [name, count] of [["animated.gif", 60_000], ["animated.webp", 3000]] as const) {
    const bytes = longAnimation(name, count);
    const { frames } = await framesOf(bytes, 32);
    assertEquals(frames.length, 32, name);
    const gaps = frames.slice(4).map(({ time }, i) => time - frames[i + 3].time);
    assert(Math.max(...gaps) - Math.min(...gaps) < 0.6 && Math.min(...gaps) > 1, `${name}: ${gaps}`);
    const last = expectedPicture("animated2");
    for (const { picture } of frames.slice(2)) assertEquals(pixelDistance(picture, last), 0, name);
    const stop = new AbortController();
    const video = await readVideo(bytes, { frames: 32, sound: false, signal: stop.signal });
    let seen = 0;
    const error = await assertRejects(async () => {
      for await (const _ of video.frames) {
        if (++seen === 2) setTimeout(() => stop.abort(new Error("enough")), 1);
      }
    }, Error);
    assertEquals(error.message, "enough", name);
    assert(seen < 32, `${seen} frames`);
  }
});

/** Runs a script with a PATH of its own; `ffmpeg` is what is found there. */
async function withPath(path: string, code: string): Promise<string> {
  const module = new URL("../../src/media/video.ts", import.meta.url).href;
  const { stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: [
      "eval",
      "--quiet",
      "--no-check",
      `import { readVideo } from "${module}"; ${code}`,
    ],
    env: { PATH: path },
  }).output();
  return new TextDecoder().decode(stdout) + new TextDecoder().decode(stderr);
}

/** The beginning of an MP4 file. */
const MP4 = "new Uint8Array([0,0,0,16,...new TextEncoder().encode('ftypisom'),0,0,0,0])";

Deno.test("without an ffmpeg on the PATH a video file is refused with what can be done", async () => {
  const folder = await Deno.makeTempDir();
  const code =
    `try { await readVideo(${MP4}, { frames: 2, sound: false }); } catch (e) { console.log(e.code, e.message); }`;
  const output = await withPath(folder, code);
  assertMatch(output, /^ffmpeg_missing .*MP4.*PATH.*Install it/);
  await Deno.remove(folder);
});

Deno.test("an ffmpeg that fails ends with what it said, and its file is removed", async () => {
  const folder = await Deno.makeTempDir();
  await Deno.writeTextFile(
    `${folder}/ffmpeg`,
    '#!/bin/sh\n[ "$1" = -version ] && exit 0\necho "moov atom not found" >&2\nexit 1\n',
  );
  await Deno.chmod(`${folder}/ffmpeg`, 0o755);
  const code =
    `try { await readVideo(${MP4}, { frames: 2, sound: false }); } catch (e) { console.log(e.code, e.message); }` +
    `let left = 0; for (const f of Deno.readDirSync("${folder}")) left += f.name.startsWith("markbase-") ? 1 : 0; console.log(left);`;
  const output = await withPath(`${folder}:/usr/bin:/bin`, `Deno.env.set("TMPDIR", "${folder}"); ${code}`);
  assertMatch(output, /^media_damaged .*moov atom not found.*\n0\n/);
  await Deno.remove(folder, { recursive: true });
});

Deno.test("ffmpeg is told format and protocols, and its pictures come with the times of the frames asked for", async () => {
  const folder = await Deno.makeTempDir();
  const script = `#!/bin/sh
[ "$1" = -version ] && exit 0
echo "$@" >> "${folder}/calls"
case "$*" in
  *progress*) echo "    title           : Duration: 09:00:00.00 Stream #0:0: Video: 99 fps" >&2
    echo "                    : Stream #0:1: Audio: 1 fps" >&2
    echo "  Duration: 00:00:02.00, start: 0.0" >&2
    echo "  Stream #0:0(und): Video: h264, yuv420p, 2x1, 4 fps, 4 tbr" >&2
    printf 'frame=3\\nout_time_us=1000\\nframe=8\\nout_time_us=2000000\\n' ;;
  *image2pipe*) printf 'P6\\n2 1\\n255\\nabcdef'; sleep 0.1; printf 'P6\\n2 1\\n255\\nghi'; sleep 0.1; printf 'jkl' ;;
esac
`;
  await Deno.writeTextFile(`${folder}/ffmpeg`, script);
  await Deno.chmod(`${folder}/ffmpeg`, 0o755);
  await Deno.writeFile(
    `${folder}/clip.bin`,
    new Uint8Array([0, 0, 0, 16, ...new TextEncoder().encode("ftypisom"), 0, 0, 0, 0]),
  );
  const code = `const v = await readVideo("${folder}/clip.bin", { frames: 2, sound: true });` +
    `for await (const { picture, time } of v.frames) console.log(time, picture.width, picture.height, new TextDecoder().decode(picture.pixels));` +
    `console.log(await v.sound());`;
  const output = await withPath(`${folder}:/usr/bin:/bin`, code);
  assertEquals(output, "0 2 1 abcdef\n1 2 1 ghijkl\nundefined\n");
  const calls = (await Deno.readTextFile(`${folder}/calls`)).trim().split("\n");
  assertEquals(calls.length, 2);
  for (const call of calls) assertMatch(call, /-protocol_whitelist file,pipe -f mov -i file:.*clip\.bin /);
  assertMatch(calls[1], /select=eq\(n\\,0\)\+eq\(n\\,4\)/);
  await Deno.remove(folder, { recursive: true });
});

const ffmpegIsThere = await hasFfmpeg();

Deno.test({
  name: "ffmpeg's own test picture as MP4 gives the sampled frames with their times, and its tone as sound",
  ignore: !ffmpegIsThere,
  fn: async () => {
    const folder = await Deno.makeTempDir();
    const path = `${folder}/a b.mp4`;
    const inputs = [
      "-f",
      "lavfi",
      "-i",
      "color=red:s=96x64:r=10:d=1",
      "-f",
      "lavfi",
      "-i",
      "color=blue:s=96x64:r=10:d=1",
    ];
    const sound = ["-f", "lavfi", "-i", "sine=frequency=1000:sample_rate=44100:duration=2"];
    const output = ["-filter_complex", "[0][1]concat=n=2", "-pix_fmt", "yuv420p", "-shortest", path];
    const made = await new Deno.Command("ffmpeg", { args: ["-v", "error", ...inputs, ...sound, ...output] })
      .output();
    assert(made.success, new TextDecoder().decode(made.stderr));
    for (const source of [path, Deno.readFileSync(path)]) {
      const { frames, sound } = await framesOf(source, 4, true);
      assertEquals(frames.map(({ time }) => time), [0, 0.5, 1, 1.5]);
      const reddish = frames.map(({ picture }) => picture.pixels[0] > 200 && picture.pixels[2] < 60);
      assertEquals(reddish, [true, true, false, false]);
      assertEquals([frames[0].picture.width, frames[0].picture.height], [96, 64]);
      const samples = sound!.samples;
      assert(Math.abs(samples.length - 32_000) < 1200, `${samples.length} samples`);
      let crossings = 0;
      for (let i = 8001; i < 24_000; i++) if (samples[i - 1] < 0 && samples[i] >= 0) crossings++;
      assert(Math.abs(crossings - 1000) <= 2, `${crossings} periods in a second`);
    }
    const long = `${folder}/long.mp4`;
    const tones = [
      "-f",
      "lavfi",
      "-i",
      "sine=frequency=300:duration=40",
      "-f",
      "lavfi",
      "-i",
      "color=red:s=32x32:r=1:d=40",
    ];
    await new Deno.Command("ffmpeg", { args: ["-v", "error", ...tones, "-pix_fmt", "yuv420p", long] })
      .output();
    const vision = { ...VISION, imageTokens: 70, frames: 2 };
    const { spans, warnings } = await prepareVideo(long, { vision, audio: { kind: "mel" } }, {});
    assertEquals(spans.map(({ kind, tokens }) => `${kind} ${tokens}`), ["video 64", "video 64", "audio 750"]);
    assertMatch(warnings[0].message, /^The sound lasts (39|40)\.\d s; the model hears the first 30 s/);
    const bytes = Deno.readFileSync(path);
    assertEquals([(await readVideo(long, { frames: 2, sound: true })).warnings, warnings.length], [[], 1]);
    // A file whose index comes first is read as far as it goes, and says so.
    const fast = `${folder}/fast.mp4`;
    await new Deno.Command("ffmpeg", {
      args: ["-v", "error", "-i", long, "-c", "copy", "-movflags", "+faststart", fast],
    }).output();
    const whole = await Deno.readFile(fast);
    const half = await prepareVideo(whole.subarray(0, whole.length * 0.6), { vision, audio: null }, {});
    assertEquals([half.spans.length, half.warnings.map(({ code }) => code)], [2, ["media_truncated"]]);
    assertMatch(half.warnings[0].message, /ends early, after \d\d\.\d\d of (39|40)\.\d\d s/);
    const heard = await readSound(whole.subarray(0, whole.length * 0.6));
    assertEquals(heard.warnings.map(({ code }) => code), ["media_truncated"]);
    assert(heard.samples.length > 16_000 && heard.samples.length < 39 * 16_000);
    const error = await assertRejects(() => framesOf(bytes.subarray(0, 600), 4), MediaError);
    assertEquals(error.code, "media_damaged");
    await Deno.remove(folder, { recursive: true });
  },
});

Deno.test({
  name:
    "videos of other containers, of ten bits, of grey, turned, or with titles that read like facts give their frames",
  ignore: !ffmpegIsThere,
  fn: async () => {
    const folder = await Deno.makeTempDir();
    const make = async (name: string, ...args: string[]) => {
      const command = new Deno.Command("ffmpeg", { args: ["-v", "error", ...args, `${folder}/${name}`] });
      const { success, stderr } = await command.output();
      assert(success, new TextDecoder().decode(stderr));
    };
    const red = ["-f", "lavfi", "-i", "color=red:s=96x64:r=10:d=1"];
    await make("plain.mp4", ...red, "-pix_fmt", "yuv420p", "-c:v", "mpeg4");
    await make("ten.mkv", ...red, "-pix_fmt", "yuv420p10le", "-c:v", "ffv1");
    await make("grey.mkv", ...red, "-pix_fmt", "gray", "-c:v", "ffv1");
    await make("turned.mp4", "-display_rotation", "90", "-i", `${folder}/plain.mp4`, "-c", "copy");
    const title = "title=Duration: 09:00:00.00\nStream #0:7: Video: h264, 99 fps\n  Duration: 08:00:00.00";
    await make("titled.mp4", "-i", `${folder}/plain.mp4`, "-c", "copy", "-metadata", title);
    const names = ["plain.mp4", "ten.mkv", "grey.mkv", "turned.mp4", "titled.mp4"];
    for (const name of ["a.wmv", "a.flv", "a.m2ts", "a.ts"]) {
      await make(name, ...red, "-pix_fmt", "yuv420p");
      names.push(name);
    }
    for (const name of names) {
      const video = await readVideo(`${folder}/${name}`, { frames: 2, sound: true });
      const frames = await Array.fromAsync(video.frames);
      assertEquals([frames.map(({ time }) => time), video.warnings], [[0, 0.5], []], name);
      const { width, height, pixels } = frames[1].picture;
      assertEquals([width, height], name === "turned.mp4" ? [64, 96] : [96, 64], name);
      const [r, g] = pixels.subarray(-3);
      assert(name === "grey.mkv" ? r === g && r > 40 : r > 200 && g < 60, `${name}: ${r}, ${g}`);
      assertEquals(await video.sound(), undefined, name);
    }
    await Deno.remove(folder, { recursive: true });
  },
});

Deno.test({
  name:
    "AAC, M4A, AIFF and the sound of WebM are heard where there is an ffmpeg, and a video without sound is refused",
  ignore: !ffmpegIsThere,
  fn: async () => {
    const folder = await Deno.makeTempDir();
    const make = async (name: string, ...args: string[]) => {
      const { success } = await new Deno.Command("ffmpeg", {
        args: ["-v", "error", ...args, `${folder}/${name}`],
      }).output();
      return success ? `${folder}/${name}` : undefined; // not every ffmpeg has every encoder
    };
    const sine = ["-f", "lavfi", "-i", "sine=frequency=1000:sample_rate=44100:duration=1"];
    let heard = 0;
    for (const name of ["a.aac", "a.m4a", "a.aiff", "a.webm", "a.caf", "a.wma"]) {
      const path = await make(name, ...sine);
      if (path === undefined) continue;
      const { samples } = await readSound(path);
      assert(Math.abs(samples.length - 16_000) < 2000, `${name}: ${samples.length} samples`);
      let crossings = 0;
      for (let i = 4001; i < 12_000; i++) if (samples[i - 1] < 0 && samples[i] >= 0) crossings++;
      assert(Math.abs(crossings - 500) <= 2, `${name}: ${crossings} periods in half a second`);
      heard++;
    }
    assert(heard > 1);
    const mute = await make("mute.mp4", "-f", "lavfi", "-i", "color=red:s=32x32:d=1", "-pix_fmt", "yuv420p");
    assertEquals((await assertRejects(() => readSound(mute!), MediaError)).code, "media_empty");
    await Deno.remove(folder, { recursive: true });
  },
});
