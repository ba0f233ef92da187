import { assertEquals, assertMatch, assertRejects, assertThrows } from "@std/assert";
import { CheckpointError, InvalidArgument, load } from "../../mod.ts";
import { mediaSettings } from "../../src/media/settings.ts";
import { parseAudio, parseVision } from "../../src/checkpoint/config_media.ts";
import { Fields } from "../../src/checkpoint/fields.ts";
import { TINY } from "../support/models.ts";
import { VISION } from "./support.ts";

function config(unified = false) {
  const kind = unified ? "gemma4_unified" : "gemma4";
  const top = Fields.of({
    vision_config: { model_type: `${kind}_vision` },
    audio_config: { model_type: `${kind}_audio` },
  });
  return { vision: parseVision(top), audio: parseAudio(top) };
}

Deno.test("without a processor_config.json, or without its sound part, the built-in values hold", () => {
  assertEquals(mediaSettings(config(), null), { vision: VISION, audio: { kind: "mel" } });
  assertEquals(mediaSettings(config(), { image_processor: { max_soft_tokens: 560 } }), {
    vision: { ...VISION, imageTokens: 560 },
    audio: { kind: "mel" },
  });
  assertEquals(mediaSettings(config(true), {}), {
    vision: { ...VISION, merged: true },
    audio: { kind: "frames", frameSize: 640 },
  });
  assertEquals(mediaSettings({ vision: null, audio: null }, null), { vision: null, audio: null });
});

Deno.test("a processor that asks for another front end is refused with key and value", () => {
  const wrong: [unknown, RegExp][] = [
    [{ feature_extractor: { fft_length: 1024 } }, /feature_extractor\.fft_length is 1024, but only 512/],
    [{ feature_extractor: { fft_overdrive: true } }, /fft_overdrive is true/],
    [{ feature_extractor: { mel_floor: 1e-5 } }, /mel_floor is 0\.00001/],
    [{ feature_extractor: { per_bin_mean: [0] } }, /per_bin_mean/],
    [{ image_processor: { patch_size: 14 } }, /patch_size is 14, but config\.json says 16/],
    [{ video_processor: { num_frames: 0 } }, /num_frames is 0/],
    [{ image_processor: { max_soft_tokens: "many" } }, /max_soft_tokens is many/],
    [{ image_processor: { do_resize: false } }, /image_processor\.do_resize is false, but only true/],
    [{ video_processor: { resample: 2 } }, /video_processor\.resample is 2, but only 3/],
    [{ image_processor: { do_rescale: false } }, /do_rescale is false/],
    [{ image_processor: { rescale_factor: 1 / 127.5 } }, /rescale_factor is 0\.0078.*only 1\/255/],
    [{ image_processor: { rescale_factor: "1" } }, /rescale_factor is 1/],
    [
      { image_processor: { do_normalize: true, image_mean: [0.5, 0.5, 0.5] } },
      /image_mean is 0\.5,0\.5,0\.5/,
    ],
    [{ video_processor: { image_std: 0.5 } }, /image_std is 0\.5/],
  ];
  for (const [processor, message] of wrong) {
    assertMatch(assertThrows(() => mediaSettings(config(), processor), CheckpointError).message, message);
  }
});

Deno.test("raw frames of another size than the config's are refused", () => {
  for (const name of ["feature_size", "audio_samples_per_token"]) {
    const processor = { feature_extractor: { [name]: 320 } };
    const error = assertThrows(() => mediaSettings(config(true), processor), CheckpointError);
    assertMatch(error.message, new RegExp(`${name} is 320, but only 640`));
  }
});

Deno.test("what pictures become without normalisation, or with one that changes nothing, is what a processor may say", () => {
  const usual = mediaSettings(config(), null);
  for (
    const image_processor of [
      { do_normalize: false, image_mean: [0.5, 0.5, 0.5], image_std: [0.5, 0.5, 0.5] },
      {
        do_normalize: true,
        image_mean: [0, 0, 0],
        image_std: [1, 1, 1],
        rescale_factor: 0.00392156862745098,
      },
      { image_mean: null, resample: 3, do_rescale: true, do_resize: true },
    ]
  ) assertEquals(mediaSettings(config(), { image_processor }), usual);
});

Deno.test("towers with other activations, biases, rotations or clamps than the reference's are refused", () => {
  const vision = { model_type: "gemma4_vision" }, audio = { model_type: "gemma4_audio" };
  const refused = (fields: Record<string, unknown>, words: RegExp) => {
    const top = Fields.of(fields);
    const error = assertThrows(() => [parseVision(top), parseAudio(top)], CheckpointError);
    assertMatch(error.message, words);
  };
  refused(
    { vision_config: { ...vision, hidden_activation: "gelu" } },
    /vision_config\.hidden_activation is "gelu"/,
  );
  refused({ vision_config: { ...vision, attention_bias: true } }, /attention_bias is true/);
  refused({ vision_config: { ...vision, rope_parameters: { rope_type: "yarn" } } }, /rope_type is "yarn"/);
  refused({ vision_config: { ...vision, rms_norm_eps: 1e300 } }, /rms_norm_eps is 1e\+300/);
  refused({ audio_config: { ...audio, hidden_act: "relu" } }, /audio_config\.hidden_act is "relu"/);
  refused({ audio_config: { ...audio, gradient_clipping: 10 } }, /gradient_clipping is 10/);
  // What the op's plan takes: 1 to 4096 keys to the left, up to 4096 to the right.
  for (const left of [1, 4098]) {
    refused({ audio_config: { ...audio, attention_context_left: left } }, /from 2 to 4097/);
  }
  refused({ audio_config: { ...audio, attention_context_right: 4097 } }, /from 0 to 4096/);
  refused({ audio_config: { ...audio, hidden_size: 1026, num_attention_heads: 2 } }, /heads of 512 at most/);
  refused({ vision_config: { ...vision, head_dim: 260 } }, /multiple of 4 up to 256/);
});

Deno.test("a model whose processor cannot be followed still answers text, and refuses media by name", async () => {
  const folder = await Deno.makeTempDir();
  for (const { name } of Deno.readDirSync(TINY)) await Deno.copyFile(`${TINY}/${name}`, `${folder}/${name}`);
  const path = `${folder}/processor_config.json`;
  const processor = JSON.parse(await Deno.readTextFile(path));
  processor.feature_extractor.fft_length = 1024;
  await Deno.writeTextFile(path, JSON.stringify(processor));
  await using model = await load(folder, { device: "cpu" });
  assertEquals(
    (await model.chat([{ role: "user", content: "What is 2 + 3?" }], { temperature: 0 })).text,
    "5",
  );
  const samples = { data: new Float32Array(16_000), sampleRate: 16_000 };
  assertMatch(
    (await assertRejects(() => model.embedAudio(samples), CheckpointError)).message,
    /fft_length is 1024/,
  );
  await Deno.writeTextFile(path, "{");
  assertMatch(
    (await assertRejects(() => load(folder), CheckpointError)).message,
    /processor_config\.json is not JSON/,
  );
  await Deno.remove(folder, { recursive: true });
});

Deno.test("R31: a model whose processor_config.json lacks the sound part, or is absent, hears all the same", async () => {
  const folder = await Deno.makeTempDir();
  for (const { name } of Deno.readDirSync(TINY)) await Deno.copyFile(`${TINY}/${name}`, `${folder}/${name}`);
  const path = `${folder}/processor_config.json`;
  const { feature_extractor: _, ...processor } = JSON.parse(await Deno.readTextFile(path));
  const audio = new URL("../fixtures/tiny/digits.wav", import.meta.url);
  const content = [{ type: "audio" as const, audio }, {
    type: "text" as const,
    text: "Transcribe the audio.",
  }];
  for (const change of [() => Deno.writeTextFile(path, JSON.stringify(processor)), () => Deno.remove(path)]) {
    await change();
    await using model = await load(folder, { device: "cpu" });
    const { text, usage } = await model.chat([{ role: "user", content }], { temperature: 0 });
    assertEquals([text, usage.audioTokens], ["three seven one", 28]);
    // The same in the shape of OpenAI's API is refused with what to write instead, never left out.
    const part = { type: "input_audio", input_audio: { data: "UklGRg==", format: "wav" } };
    const error = await assertRejects(
      () => model.chat([{ role: "user", content: [part, content[1]] }] as never),
      InvalidArgument,
    );
    assertMatch(error.message, /"input_audio".*Write \{type: "audio", audio: /);
  }
  await Deno.remove(folder, { recursive: true });
});
