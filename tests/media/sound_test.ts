import { assert, assertEquals, assertMatch, assertRejects, assertThrows } from "@std/assert";
import { InvalidArgument, MediaError } from "../../mod.ts";
import type { Sound } from "../../src/media/mono.ts";
import { readCompressed } from "../../src/media/compressed_sound.ts";
import { readSound } from "../../src/media/sound.ts";
import { readWav } from "../../src/media/wav.ts";
import { cpuMilliseconds } from "../support/cpu_time.ts";
import { damagedCopies, mediaBytes, mediaPath } from "./support.ts";

/** The mean of the two channels that make_media.py wrote, at 16 kHz. */
function chord(i: number): number {
  const t = i / 16_000;
  return (0.4 * Math.sin(2 * Math.PI * 440 * t) + 0.3 * Math.sin(2 * Math.PI * 1320 * t)) / 2;
}

/** Root of the mean square of the difference to the chord, away from the ends; `delay` in samples of 16 kHz. */
function distance({ samples }: Sound, delay = 0): number {
  let sum = 0, count = 0;
  for (let i = 400; i < 3600; i++, count++) sum += (samples[i] - chord(i - delay)) ** 2;
  return Math.sqrt(sum / count);
}

/** Largest distance of each file; the chord's own root mean square is 0.18. */
const FILES: Record<string, number> = {
  "u8.wav": 5e-3,
  "s16.wav": 2e-5,
  "s24.wav": 1e-5,
  "s32.wav": 1e-5,
  "f32.wav": 1e-5,
  "f64.wav": 1e-5,
  "extensible.wav": 1e-5,
  "alaw.wav": 6e-3,
  "ulaw.wav": 6e-3,
  "tone.flac": 2e-5,
  "tone.ogg": 0.01,
  "tone.opus": 0.02,
  "tone.mp3": 0.01,
};

for (const [name, most] of Object.entries(FILES)) {
  Deno.test(`${name} is heard as the chord that was written, at 16 kHz, as the mean of its channels`, async () => {
    const sound = await readSound(mediaPath(name));
    assertEquals([sound.samples.length, sound.warnings], [4000, []]);
    const far = distance(sound);
    assert(far < most, `${far} from the chord`);
  });
}

Deno.test("raw samples of any type and number of channels give one sound", async () => {
  const mono = Float32Array.from({ length: 4000 }, (_, i) => chord(i));
  const stereo = Float64Array.from({ length: 8000 }, (_, i) => 2 * (i % 2) * chord(i >> 1));
  const inputs = [
    { data: mono, sampleRate: 16_000 },
    { data: stereo, sampleRate: 16_000, channels: 2 },
    { data: Int16Array.from(mono, (s) => Math.round(s * 32768)), sampleRate: 16_000 },
    { data: Int32Array.from(mono, (s) => Math.round(s * 2147483648)), sampleRate: 16_000 },
  ];
  for (const input of inputs) assert(distance(await readSound(input)) < 2e-5);
});

Deno.test("raw samples of a wrong shape, rate or value are refused with the numbers", async () => {
  const wrong: [unknown, RegExp][] = [
    [{ data: new Float32Array(5), sampleRate: 16_000, channels: 2 }, /5 raw samples.*2 channels/],
    [{ data: new Float32Array(6), sampleRate: 16_000, channels: "2" }, /"2" channels; .* from 1 to 256/],
    [{ data: new Float32Array(5), sampleRate: 0 }, /0 samples a second/],
    [{ data: new Float32Array(5), sampleRate: "16000" }, /"16000" samples a second/],
    [{ data: new Float32Array(5), sampleRate: 22_050.5 }, /22050\.5/],
    [{ data: new Float32Array([0, Infinity]), sampleRate: 16_000 }, /Infinity/],
    [{ data: [0, 0], sampleRate: 16_000 }, /Float32Array/],
    [undefined, /path, a URL/],
  ];
  for (const [input, message] of wrong) {
    assertMatch((await assertRejects(() => readSound(input as never), InvalidArgument)).message, message);
  }
  const empty = await assertRejects(
    () => readSound({ data: new Float32Array(), sampleRate: 16_000 }),
    MediaError,
  );
  assertEquals(empty.code, "media_empty");
});

/** A WAV header with any values before 16-bit samples. */
function wav(
  options: Partial<Record<"code" | "channels" | "rate" | "align" | "bits" | "size", number>>,
  samples = 800,
) {
  const { code = 1, channels = 1, rate = 16_000, align = 2, bits = 16, size = samples * 2 } = options;
  const bytes = new Uint8Array(44 + samples * 2);
  const view = new DataView(bytes.buffer);
  const ascii = (at: number, text: string) => bytes.set(new TextEncoder().encode(text), at);
  ascii(0, "RIFF");
  view.setUint32(4, 36 + samples * 2, true);
  ascii(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, code, true);
  view.setUint16(22, channels, true);
  view.setUint32(24, rate, true);
  view.setUint16(32, align, true);
  view.setUint16(34, bits, true);
  ascii(36, "data");
  view.setUint32(40, size, true);
  for (let i = 0; i < samples; i++) view.setInt16(44 + 2 * i, 1000, true);
  return bytes;
}

Deno.test("WAV headers that lie about sizes give what the file holds, and a warning where it is less", async () => {
  assertEquals((await readSound(wav({}))).samples.length, 800);
  const more = await readSound(wav({ size: 1_000_000 }));
  assertEquals([more.samples.length, more.warnings[0].code], [800, "sound_truncated"]);
  assertMatch(more.warnings[0].message, /1000000.*1600/);
  for (const size of [0, 0xffffffff]) {
    const open = await readSound(wav({ size })); // a recorder wrote to a pipe
    assertEquals([open.samples.length, open.warnings.length], [800, 0]);
  }
  assertEquals((await readSound(wav({ size: 401 }))).samples.length, 200);
});

Deno.test("a WAV file without samples is empty, whatever stands behind", async () => {
  const behind = new Uint8Array(28); // a list of notes
  behind.set(new TextEncoder().encode("LIST"));
  behind[4] = 20;
  const file = new Uint8Array([...wav({ size: 0 }).subarray(0, 44), ...behind]);
  new DataView(file.buffer).setUint32(4, file.length - 8, true);
  assertEquals((await assertRejects(() => readSound(file), MediaError)).code, "media_empty");
});

Deno.test("a sound that would be too long at 16 kHz is refused as it is where it has so many samples", async () => {
  const data = new Int16Array(2 ** 28 / 16 + 1);
  const error = await assertRejects(() => readSound({ data, sampleRate: 1000 }), MediaError);
  assertEquals(error.code, "media_too_large");
  assertEquals((await readSound({ data, sampleRate: 1000 }, undefined, 31)).samples.length, 31 * 16_000);
});

/** Bytes one after the other. */
const chain = (...parts: Uint8Array[]) => new Uint8Array(parts.flatMap((part) => [...part]));

Deno.test("tags before and behind a sound change nothing of it", async () => {
  const ascii = (text: string, bytes: number) => {
    const padded = new Uint8Array(bytes);
    padded.set(new TextEncoder().encode(text));
    return padded;
  };
  const id3 = ascii("ID3\x04", 30);
  id3[9] = 20;
  const old = ascii("TAGa title", 128);
  const ape = (header: boolean) => {
    const part = ascii("APETAGEX", 32), view = new DataView(part.buffer);
    view.setUint32(8, 2000, true);
    view.setUint32(12, 32 + 40, true);
    view.setUint32(20, header ? 0x80000000 : 0, true);
    return chain(...(header ? [part] : []), ascii("an item", 40), part);
  };
  for (const name of ["tone.flac", "tone.mp3", "tone.ogg", "tone.opus"]) {
    const bytes = mediaBytes(name);
    const plain = await readSound(bytes);
    for (
      const [before, behind] of [
        [[], [old]],
        [[id3], []],
        [[id3, id3], [ape(true), old]],
        [[], [ape(false)]],
        [[id3], [ape(false), ape(true)]],
      ]
    ) {
      assertEquals(await readSound(chain(...before, bytes, ...behind)), plain, name);
    }
  }
});

Deno.test("an Ogg file of several sounds in a row is heard to its end", async () => {
  for (const name of ["tone.ogg", "tone.opus"]) {
    const one = mediaBytes(name);
    const { samples, rate } = await readCompressed("ogg", one);
    for (const count of [2, 3]) {
      const all = await readCompressed("ogg", chain(...Array.from({ length: count }, () => one)));
      assertEquals([all.rate, all.warnings], [rate, []]);
      assertEquals(all.samples.length, count * samples.length);
      for (let i = 0; i < count; i++) {
        assertEquals(all.samples.slice(i * samples.length, (i + 1) * samples.length), samples);
      }
    }
    const cut = await readCompressed("ogg", chain(one, one.subarray(0, one.length * 0.8)));
    assertEquals(cut.warnings.map(({ code }) => code), ["sound_truncated"]);
    assert(cut.samples.length >= samples.length && cut.samples.length < 2 * samples.length);
  }
  const [ogg, opus] = ["tone.ogg", "tone.opus"].map((name) => mediaBytes(name));
  await assertRejects(
    () => readSound(chain(ogg, opus)),
    MediaError,
    "its rate changes from 22050 to 48000 Hz",
  );
  const many = new Uint8Array(1001 * opus.length);
  for (let at = 0; at < many.length; at += opus.length) many.set(opus, at);
  assertEquals((await assertRejects(() => readSound(many), MediaError)).code, "media_too_large");
});

Deno.test("WAV headers that contradict themselves are refused with the numbers", async () => {
  const wrong: [Parameters<typeof wav>[0], string, RegExp][] = [
    [{ channels: 0 }, "media_damaged", /0 channels/],
    [{ align: 0 }, "media_damaged", /frames of 0 bytes/],
    [{ channels: 3 }, "media_damaged", /3 channels in frames of 2 bytes/],
    [{ bits: 24 }, "media_damaged", /24 bits take 2 bytes/],
    [{ code: 2 }, "unsupported_media", /kind 0x2/],
    [{ code: 3 }, "media_damaged", /take 2 bytes/],
  ];
  for (const [options, code, message] of wrong) {
    const error = await assertRejects(() => readSound(wav(options)), MediaError);
    assertEquals(error.code, code);
    assertMatch(error.message, message);
  }
  for (const rate of [0, 4_000_000_000]) {
    await assertRejects(() => readSound(wav({ rate })), InvalidArgument);
  }
  assertEquals((await assertRejects(() => readSound(wav({}, 0)), MediaError)).code, "media_empty");
});

Deno.test("a sound cut at any byte is heard as far as it goes with a warning, or refused", async () => {
  const mp3 = mediaBytes("tone.mp3");
  const files: Record<string, Uint8Array> = { "MP3 that declares nothing": mp3.subarray(MP3_FRAMES[0]) };
  for (const name of ["s16.wav", "f64.wav", "tone.flac", "tone.ogg", "tone.opus", "tone.mp3", "long.mp3"]) {
    files[name] = mediaBytes(name);
  }
  for (const [name, bytes] of Object.entries(files)) {
    const whole = (await readSound(bytes)).samples.length;
    let heard = 0;
    const step = Math.ceil(bytes.length / 31);
    for (let length = bytes.length - 1; length >= 0; length -= step) {
      const what = `${name}, ${length} of ${bytes.length} bytes`;
      try {
        const { samples, warnings } = await readSound(bytes.subarray(0, length));
        // Where the last page of an Ogg file is incomplete, nothing says how much of its last packet counts.
        assert(samples.length > 0 && samples.length <= whole + 400 && samples.every(Number.isFinite), what);
        // Without a count, a file that ends between two frames is one that was made so.
        if (name === "MP3 that declares nothing" && warnings.length === 0) {
          assert(MP3_FRAMES.includes(length + MP3_FRAMES[0]), what);
        } else assertEquals(warnings.map(({ code }) => code), ["sound_truncated"], what);
        heard++;
      } catch (error) {
        if (!(error instanceof MediaError)) throw error;
        assert(
          ["media_damaged", "media_empty", "unknown_media", "unsupported_media"].includes(error.code),
          what,
        );
      }
    }
    assert(heard > 0, name);
  }
});

/** Where the frames of tone.mp3 begin, as ffprobe lists them; the first one of sound follows one that tells of the others. */
const MP3_FRAMES = [208, 730, 1147, 1199, 1251, 1303, 1355, 1407, 1459, 1511, 1589, 2111];

Deno.test("an MP3 that lost its end says so, by the number of samples that it declares", async () => {
  const bytes = mediaBytes("long.mp3");
  const whole = await readSound(bytes);
  assertEquals(whole.warnings, []);
  assert(Math.abs(whole.samples.length - 32_000) < 32);
  const { samples, warnings } = await readSound(bytes.subarray(0, bytes.length * 0.6));
  assertEquals(warnings.map(({ code }) => code), ["sound_truncated"]);
  assertMatch(warnings[0].message, /after 1\.\d\d of 2\.00 s/);
  assert(samples.length < 24_000);
});

Deno.test("sounds of too many samples are refused before memory is taken for them", async () => {
  const samples = 2 ** 28 + 1;
  const header = wav({ bits: 8, align: 1, size: samples }, 0);
  const large = new Uint8Array(header.length + samples);
  large.set(header);
  const error = assertThrows(() => readWav(large), MediaError);
  assertEquals(error.code, "media_too_large");
  assertMatch(error.message, /268435457 samples or more, at 16000 Hz; 268435456 are allowed/);
  const flac = mediaBytes("tone.flac");
  flac[21] |= 15;
  assertEquals((await assertRejects(() => readSound(flac), MediaError)).code, "media_too_large");
});

Deno.test("of a long sound as much is read as is wanted, equal to the beginning of the whole", async () => {
  const data = Float32Array.from({ length: 4 * 44_100 }, (_, i) => Math.sin(i * i / 1e5));
  const input = { data, sampleRate: 44_100 };
  const whole = await readSound(input), part = await readSound(input, undefined, 2);
  assertEquals([whole.samples.length, whole.seconds], [64_000, 4]);
  assertEquals([part.samples.length, part.seconds], [32_000, 4]);
  assertEquals(part.samples, whole.samples.subarray(0, 32_000));
});

Deno.test("reading a long sound ends with its signal, in the decoder and in the resampler", async () => {
  const data = new Float32Array(60 * 48_000).fill(0.1);
  const stop = new AbortController();
  setTimeout(() => stop.abort(new Error("enough")), 30);
  const began = cpuMilliseconds();
  const error = await assertRejects(() => readSound({ data, sampleRate: 48_000 }, stop.signal), Error);
  assertEquals(error.message, "enough");
  const whole = cpuMilliseconds();
  await readSound({ data, sampleRate: 48_000 });
  assert(whole - began < (cpuMilliseconds() - whole) / 2, "it ended long before its end");
  const mp3 = mediaBytes("long.mp3");
  const aborted = AbortSignal.abort(new Error("before"));
  assertEquals((await assertRejects(() => readSound(mp3, aborted), Error)).message, "before");
});

Deno.test("frames of a sound that cannot be decoded are left out with a warning that counts them", async () => {
  const bytes = mediaBytes("tone.opus");
  let said = 0;
  for (let at = 1000; at < bytes.length - 200; at += 400) {
    const damaged = bytes.slice();
    damaged.fill(0xff, at, at + 120);
    try {
      const { samples, warnings } = await readSound(damaged);
      assert(samples.every(Number.isFinite));
      if (warnings.some(({ code }) => code === "sound_damaged")) said++;
    } catch (error) {
      assert(error instanceof MediaError);
      said++;
    }
  }
  assert(said > 0);
});

Deno.test("files that are no sounds are refused with what they are", async () => {
  const cases: [Uint8Array, string, RegExp][] = [
    [new TextEncoder().encode("<!doctype html><p>not found"), "unknown_media", /no known format/],
    [mediaBytes("smooth.png"), "unsupported_media", /PNG/],
    [
      new Uint8Array([...new TextEncoder().encode("OggS"), ...new Uint8Array(100)]),
      "unsupported_media",
      /Opus/,
    ],
  ];
  for (const [bytes, code, message] of cases) {
    const error = await assertRejects(() => readSound(bytes), MediaError);
    assertEquals(error.code, code);
    assertMatch(error.message, message);
  }
});

Deno.test("damaged bytes of a sound give an error or finite samples, never a crash or a hang", async () => {
  const names = ["s16.wav", "s24.wav", "f32.wav", "f64.wav", "extensible.wav", "alaw.wav"];
  names.push("tone.flac", "tone.ogg", "tone.opus", "tone.mp3");
  for (const [i, name] of names.entries()) {
    for (const bytes of damagedCopies(mediaBytes(name), 40, i)) {
      try {
        assert((await readSound(bytes)).samples.every(Number.isFinite), name);
      } catch (error) {
        assert(error instanceof MediaError || error instanceof InvalidArgument, `${name}: ${error}`);
      }
    }
  }
});

Deno.test("silence stays silence", async () => {
  const { samples } = await readSound({ data: new Int16Array(44_100), sampleRate: 44_100 });
  assertEquals([samples.length, samples.every((s) => s === 0)], [16_000, true]);
});
