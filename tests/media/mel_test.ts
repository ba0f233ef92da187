import { assert, assertEquals } from "@std/assert";
import { RealFft } from "../../src/media/fft.ts";
import { logMel, melSoftTokens, rawFrames } from "../../src/media/mel.ts";
import { readWav } from "../../src/media/wav.ts";
import { mediaPath } from "./support.ts";
import { fixtureModel, maxDifference, readTensors, sharedTiny } from "../support/models.ts";

const golden = sharedTiny("golden");

for (const [row, clips] of [["e2b-mm-clipped", 2], ["e2b-mm-unclipped", 1]] as const) {
  const folder = fixtureModel(row);
  Deno.test({
    name: `${row}: log-mel frames, their mask and the number of soft tokens are the golden ones`,
    ignore: folder === null,
    fn: async () => {
      const tensors = await readTensors(`${folder}/golden.safetensors`);
      const { audio } = JSON.parse(Deno.readTextFileSync(`${folder}/golden.json`));
      for (let i = 0; i < clips; i++) {
        const { samples } = readWav(Deno.readFileSync(`${folder}/media/audio${i}.wav`));
        const features = logMel(samples);
        const far = maxDifference(features.logMel, tensors.get(`audio${i}.input_features`)!.data);
        assert(far <= 1e-3, `${far} apart`);
        assertEquals([...features.valid], [...tensors.get(`audio${i}.input_features_mask`)!.data]);
        assertEquals(melSoftTokens(samples.length), audio[i].num_soft_tokens);
      }
    },
  });
}

Deno.test({
  name: "the small model's recordings give the golden log-mel frames",
  ignore: golden === null,
  fn: async () => {
    for (const name of ["digits", "command", "question", "rising"]) {
      const tensors = await readTensors(`${golden}/audio_${name}.safetensors`);
      const features = logMel(readWav(Deno.readFileSync(`${golden}/${name}.wav`)).samples);
      const far = maxDifference(features.logMel, tensors.get("mel")!.data);
      assert(far <= 1e-3, `${name}: ${far} apart`);
      assertEquals([...features.valid], [...tensors.get("mel_mask")!.data]);
    }
  },
});

const unified = fixtureModel("12b");
Deno.test({
  name: "12b: raw frames are the golden ones",
  ignore: unified === null,
  fn: async () => {
    const folder = unified!;
    const tensors = await readTensors(`${folder}/golden.safetensors`);
    const { samples, frames } = rawFrames(
      readWav(Deno.readFileSync(`${folder}/media/audio0.wav`)).samples,
      640,
    );
    assertEquals(frames, tensors.get("audio0.input_features")!.shape[0]);
    assertEquals(maxDifference(samples, tensors.get("audio0.input_features")!.data), 0);
  },
});

Deno.test("soft tokens are counted by frames and two halvings: 750 for 30 s, one for 0.05 s, none for 0.01 s", () => {
  const counts: [number, number][] = [
    [480_000, 750],
    [478_400, 748],
    [16_000, 25],
    [800, 1],
    [162, 1],
    [
      161,
      1,
    ],
    [160, 0],
    [0, 0],
  ];
  for (const [samples, tokens] of counts) {
    assertEquals(melSoftTokens(samples), tokens, `${samples} samples`);
    const { valid } = logMel(new Float32Array(samples));
    const frames = valid.reduce((sum, v) => sum + v, 0);
    assertEquals(Math.ceil(Math.ceil(frames / 2) / 2), tokens);
  }
});

Deno.test("frames of silence are the logarithm of the floor", () => {
  const { logMel: values, valid } = logMel(new Float32Array(1600));
  assertEquals(valid.length, Math.floor((1664 + 160 - 321) / 160) + 1);
  valid.forEach((ok, i) => {
    for (let m = 0; m < 128; m++) assertEquals(values[i * 128 + m], ok ? Math.fround(Math.log(0.001)) : 0);
  });
});

Deno.test("the Fourier transform equals the sum that defines it", () => {
  const samples = Float64Array.from({ length: 50 }, (_, i) => Math.sin(i * i));
  const magnitudes = new Float64Array(33);
  new RealFft(64).magnitudes(samples, magnitudes);
  for (let k = 0; k <= 32; k++) {
    let re = 0, im = 0;
    samples.forEach((s, i) => {
      re += s * Math.cos(2 * Math.PI * k * i / 64);
      im -= s * Math.sin(2 * Math.PI * k * i / 64);
    });
    assert(Math.abs(magnitudes[k] - Math.hypot(re, im)) < 1e-12);
  }
});

Deno.test("raw frames are one for each 640 samples begun, the last filled up with zeros", () => {
  for (const [samples, count] of [[640, 1], [641, 2], [800, 2], [480_000, 750], [1, 1]]) {
    const { samples: padded, frames } = rawFrames(new Float32Array(samples).fill(1), 640);
    assertEquals([frames, padded.length], [count, count * 640]);
    assertEquals(padded.reduce((sum, s) => sum + s, 0), samples);
  }
});

Deno.test("the log-mel frames of a clip of 6.18 s are those of the reference, within 1e-4", async () => {
  const { samples: count, sum, frames, valid, every, values } =
    JSON.parse(await Deno.readTextFile(mediaPath("reference.json"))).logMel;
  // As make_reference.py makes it.
  const clip = new Int32Array(count);
  let state = 12345;
  for (let i = 0; i < count; i++) {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    const triangle = Math.abs(i * (300 + Math.floor(i / 50)) % 16_000 - 8000) - 4000;
    const loud = 1 + Math.floor(i / 8000) % 5;
    clip[i] = Math.floor(triangle * loud / 2) + (state >> 16) % 401 - 200;
  }
  assertEquals(clip.reduce((a, b) => a + b), sum);
  const features = logMel(Float32Array.from(clip, (sample) => sample / 32768));
  assertEquals([features.valid.length, features.valid.reduce((a, b) => a + b)], [frames, valid]);
  const expected = new Float32Array(Uint8Array.fromBase64(values).buffer);
  let far = 0;
  for (let i = 0; i < expected.length / 128; i++) {
    const found = features.logMel.subarray(i * every * 128, (i * every + 1) * 128);
    far = Math.max(far, maxDifference(found, expected.subarray(i * 128, (i + 1) * 128)));
  }
  assert(far < 1e-4, `${far} apart`);
});
