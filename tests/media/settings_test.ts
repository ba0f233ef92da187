import { assertEquals, assertMatch, assertRejects, assertThrows } from "@std/assert";
import { CheckpointError, load } from "../../mod.ts";
import { mediaSettings } from "../../src/media/settings.ts";
import { parseAudio, parseVision } from "../../src/checkpoint/config_media.ts";
import { Fields } from "../../src/checkpoint/fields.ts";
import { TINY } from "../support/models.ts";

function config(unified = false) {
  const kind = unified ? "gemma4_unified" : "gemma4";
  const top = Fields.of({
    vision_config: { model_type: `${kind}_vision` },
    audio_config: { model_type: `${kind}_audio` },
  });
  return { vision: parseVision(top), audio: parseAudio(top) };
}

Deno.test("without a processor_config.json, or without its sound part, the built-in values hold", () => {
  const vision = {
    patchSize: 16,
    poolingKernelSize: 3,
    merged: false,
    imageTokens: 280,
    frameTokens: 70,
    frames: 32,
  };
  assertEquals(mediaSettings(config(), null), { vision, audio: { kind: "mel" } });
  assertEquals(mediaSettings(config(), { image_processor: { max_soft_tokens: 560 } }), {
    vision: { ...vision, imageTokens: 560 },
    audio: { kind: "mel" },
  });
  assertEquals(mediaSettings(config(true), {}), {
    vision: { ...vision, merged: true },
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
  ];
  for (const [processor, message] of wrong) {
    assertMatch(assertThrows(() => mediaSettings(config(), processor), CheckpointError).message, message);
  }
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
