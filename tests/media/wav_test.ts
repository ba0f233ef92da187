/** WAV files of every kind, and such as contradict themselves, written by their definition. */
import { assert, assertEquals, assertMatch, assertRejects, assertThrows } from "@std/assert";
import { InvalidArgument, MediaError } from "../../mod.ts";
import { readSound } from "../../src/media/sound.ts";
import { readWav } from "../../src/media/wav.ts";

interface WavKind {
  /** 1 integers, 3 floats */ code: number;
  bits: number;
  channels: number;
  rate?: number;
  /** bits of the container, where a sample does not fill it */ container?: number;
  /** the long header, with the code behind it */ extensible?: boolean;
  /** chunks before the samples */ before?: readonly (readonly [string, number])[];
  /** RIFF, or RF64 with sizes of its own */ riff?: "RIFF" | "RF64";
  /** frames × channels of −1 to 1 */ samples: readonly number[];
}

function wav(kind: WavKind): Uint8Array {
  const { code, bits, channels, rate = 16_000, extensible = false, before = [], riff = "RIFF", samples } =
    kind;
  const { container = Math.ceil(bits / 8) * 8 } = kind;
  const size = container / 8;
  const bytes: number[] = [];
  const number = (value: number, length: number) => {
    for (let i = 0; i < length; i++) bytes.push(Math.floor(value / 256 ** i) % 256);
  };
  const ascii = (text: string) => bytes.push(...new TextEncoder().encode(text));
  const length = samples.length * size;
  ascii(riff);
  number(riff === "RF64" ? 0xffffffff : 0, 4);
  ascii("WAVE");
  if (riff === "RF64") {
    ascii("ds64");
    number(28, 4);
    number(0, 8);
    number(length, 8);
    number(samples.length / channels, 8);
    number(0, 4);
  }
  for (const [name, count] of before) {
    ascii(name);
    number(count, 4);
    bytes.push(...Array(count + count % 2).fill(0x5a));
  }
  ascii("fmt ");
  number(extensible ? 40 : 16, 4);
  number(extensible ? 0xfffe : code, 2);
  number(channels, 2);
  number(rate, 4);
  number(rate * channels * size, 4);
  number(channels * size, 2);
  number(extensible ? container : bits, 2);
  if (extensible) {
    number(22, 2);
    number(bits, 2); // of the container, those that are valid
    number(0, 4);
    number(code, 2);
    bytes.push(0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71);
  }
  ascii("data");
  number(riff === "RF64" ? 0xffffffff : length, 4);
  const head = bytes.length;
  const file = new Uint8Array(head + length);
  file.set(bytes);
  const view = new DataView(file.buffer, head);
  samples.forEach((sample, i) => {
    if (code === 3) {
      return size === 4 ? view.setFloat32(4 * i, sample, true) : view.setFloat64(8 * i, sample, true);
    }
    // Samples stand in the upper bits of their container.
    const value = Math.round(sample * 2 ** (bits - 1)) * 2 ** (container - bits) +
      (container === 8 ? 128 : 0);
    for (let j = 0; j < size; j++) file[head + size * i + j] = Math.floor(value / 256 ** j) & 255;
  });
  return file;
}

const VALUES = [0, 0.5, -0.5, 0.25, -1, 0.75, 0.125, -0.875];

Deno.test("samples of every width are read as they were written, in short and long headers", () => {
  const kinds: [number, number, number?][] = [
    [1, 8],
    [1, 12],
    [1, 16],
    [1, 20],
    [1, 24],
    [1, 32],
    [1, 20, 24],
    [1, 24, 32],
    [3, 32],
    [3, 64],
  ];
  for (const [code, bits, container] of kinds) {
    for (const extensible of [false, true]) {
      if (!extensible && container !== undefined && container / 8 !== Math.ceil(bits / 8)) continue;
      const { samples, rate, warnings } = readWav(
        wav({ code, bits, container, channels: 1, extensible, samples: VALUES }),
      );
      assertEquals(
        [[...samples], rate, warnings],
        [VALUES, 16_000, []],
        `${code} ${bits} ${container} ${extensible}`,
      );
    }
  }
});

Deno.test("channels are averaged, 1 to 64 of them", () => {
  for (const channels of [1, 2, 3, 6, 8, 64]) {
    const samples = VALUES.flatMap((value) =>
      Array.from({ length: channels }, (_, c) => c === 0 ? value : 0)
    );
    const { samples: mono } = readWav(
      wav({ code: 3, bits: 64, channels, extensible: channels > 2, samples }),
    );
    assertEquals([...mono], VALUES.map((value) => Math.fround(value / channels)));
  }
});

Deno.test("chunks before the samples are passed over, of odd lengths too, and files of RF64 are read", () => {
  const kind = { code: 1, bits: 16, channels: 1, samples: VALUES } as const;
  for (const before of [[["LIST", 26]], [["JUNK", 27], ["bext", 1]], [["junk", 0]]] as const) {
    assertEquals([...readWav(wav({ ...kind, before })).samples], VALUES);
  }
  assertEquals([...readWav(wav({ ...kind, riff: "RF64" })).samples], VALUES);
});

Deno.test("samples that are no numbers are refused, loud ones are not", async () => {
  for (const value of [NaN, Infinity, -Infinity]) {
    for (const bits of [32, 64]) {
      const samples = [0.5, 0.5, 0.5, value, 0.5];
      const error = await assertRejects(
        () => readSound(wav({ code: 3, bits, channels: 1, samples })),
        MediaError,
      );
      assertEquals(error.code, "media_damaged");
      assertMatch(error.message, /sample 3 is (NaN|-?Infinity)/);
    }
  }
  const loud = readWav(wav({ code: 3, bits: 32, channels: 1, samples: [2, -3, 1e29] }));
  assertEquals([...loud.samples], [2, -3, 1e29].map(Math.fround));
  // What would be infinite as a float of 32 bits, or behind a filter.
  for (const value of [1e300, -3e38]) {
    const samples = [0, value];
    const error = await assertRejects(
      () => readSound(wav({ code: 3, bits: 64, channels: 1, samples })),
      MediaError,
    );
    assertMatch(error.message, /sample 1 is/);
    const data = Float64Array.from(samples);
    assertMatch(
      (await assertRejects(() => readSound({ data, sampleRate: 44_100 }), InvalidArgument)).message,
      /Raw sample 1 is/,
    );
  }
});

Deno.test("rates from 1000 to 768000 Hz are heard, others are refused with the number", async () => {
  for (const rate of [1000, 5512, 192_000, 384_000, 768_000]) {
    const samples = Array.from({ length: rate / 4 }, (_, i) => 0.5 * Math.sin(2 * Math.PI * 200 * i / rate));
    const sound = await readSound(wav({ code: 3, bits: 32, channels: 1, rate, samples }));
    assertEquals(sound.samples.length, 4000);
    for (let i = 1000; i < 3000; i++) {
      assert(
        Math.abs(sound.samples[i] - 0.5 * Math.sin(2 * Math.PI * 200 * i / 16_000)) < 1e-3,
        `${rate} Hz at ${i}`,
      );
    }
  }
  for (const rate of [0, 1, 999, 768_001, 2 ** 32 - 1]) {
    const bytes = wav({ code: 1, bits: 16, channels: 1, rate, samples: VALUES });
    assertMatch(
      (await assertRejects(() => readSound(bytes), InvalidArgument)).message,
      new RegExp(`${rate} samples a second`),
    );
  }
});

Deno.test("a header of 65535 channels or of chunks beyond the end costs nothing and is refused", () => {
  const bytes = wav({ code: 1, bits: 8, channels: 1, samples: VALUES });
  const view = new DataView(bytes.buffer);
  view.setUint16(22, 65_535, true);
  view.setUint16(32, 65_535, true);
  assertEquals(readWav(bytes).samples.length, 0);
  const chunk = wav({ code: 1, bits: 16, channels: 1, samples: VALUES, before: [["JUNK", 4]] });
  new DataView(chunk.buffer).setUint32(16, 0xfffffff0, true);
  assertEquals(assertThrows(() => readWav(chunk), MediaError).code, "media_damaged");
});
