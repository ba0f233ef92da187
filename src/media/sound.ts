/** From what a caller passes as a sound to 16 kHz mono. */
import { checkFields, describe } from "../arguments.ts";
import { InvalidArgument, MediaError } from "../errors.ts";
import { readCompressed } from "./compressed_sound.ts";
import { isFfmpegFormat, soundWithFfmpeg } from "./ffmpeg.ts";
import type { AudioInput, MediaSource, RawSamples } from "./inputs.ts";
import { SAMPLE_RATE } from "./mel.ts";
import { checkSamples, isSample, type MonoSound, type Sound } from "./mono.ts";
import { resample } from "./resample.ts";
import { isMediaSource, readHead, readSource, regularPath } from "./source.ts";
import { isAudioFormat, type MediaFormat, sniff } from "./sniff.ts";
import { readWav } from "./wav.ts";

/** Bytes that the file of a sound may have. */
const MAX_AUDIO_BYTES = 2 ** 30;
const LEAST_RATE = 1000;
const MOST_RATE = 768_000;
const MOST_CHANNELS = 256;

/**
 * Reads a sound, of a long one no more than `most` seconds. Rejects with `MediaError`, `InvalidArgument`, `MissingPermission` or the
 * signal's reason.
 */
export async function readSound(input: AudioInput, signal?: AbortSignal, most = Infinity): Promise<Sound> {
  const mono = isMediaSource(input) ? await readFile(input, signal, most) : rawSound(input);
  checkRate(mono.rate);
  if (mono.samples.length === 0) {
    throw new MediaError("media_empty", "The sound has no samples. Record it again.");
  }
  const { rate, warnings } = mono;
  checkSamples(mono.samples.length, rate);
  const { seconds = mono.samples.length / rate } = mono;
  // The last samples of a part are not those of the whole: the filter reaches for what follows.
  const part = mono.samples.subarray(0, Math.ceil((most + 1) * rate));
  checkSamples(Math.ceil(part.length * SAMPLE_RATE / rate), SAMPLE_RATE);
  const samples = await resample(part, rate, SAMPLE_RATE, signal);
  return { samples: samples.subarray(0, most * SAMPLE_RATE), seconds, warnings };
}

/** Decodes a file. */
async function readFile(
  input: MediaSource,
  signal: AbortSignal | undefined,
  most: number,
): Promise<MonoSound> {
  const path = await regularPath(input);
  if (path !== undefined) {
    const format = soundFormat(sniff(await readHead(path, signal)));
    // It stays where it is, however large it may be.
    if (!isAudioFormat(format)) return await soundWithFfmpeg(path, format, signal, most);
  }
  const bytes = await readSource(input, { limit: MAX_AUDIO_BYTES, signal });
  const format = soundFormat(sniff(bytes));
  if (format === "wav") return readWav(bytes);
  if (isAudioFormat(format)) return await readCompressed(format, bytes, signal);
  return await soundWithFfmpeg(bytes, format, signal, most);
}

/** The format as one that can be heard, or a `MediaError` that says which it is. */
export function soundFormat(format: MediaFormat | undefined): MediaFormat {
  if (format !== undefined && (isAudioFormat(format) || isFfmpegFormat(format))) return format;
  const what = format === undefined ? "of no known format" : format.toUpperCase();
  throw new MediaError(
    format === undefined ? "unknown_media" : "unsupported_media",
    `The sound is ${what}. WAV, MP3, FLAC and Ogg (Opus, Vorbis, FLAC) can be read, AAC, AIFF, CAF, WMA and videos with ffmpeg; convert it to one of them.`,
  );
}

function rawSound(input: RawSamples): MonoSound {
  const { data, sampleRate, channels = 1 } = Object(input) as RawSamples;
  const scale = data instanceof Int16Array
    ? 32768
    : data instanceof Int32Array
    ? 2147483648
    : data instanceof Float32Array || data instanceof Float64Array
    ? 1
    : undefined;
  if (scale === undefined) {
    throw new InvalidArgument(
      "A sound is a path, a URL, a Blob, bytes, or {data, sampleRate} with data in a Float32Array, Float64Array, " +
        "Int16Array or Int32Array.",
    );
  }
  checkFields(input, ["data", "sampleRate", "channels"]);
  if (
    !Number.isInteger(channels) || channels < 1 || channels > MOST_CHANNELS || data.length % channels !== 0
  ) {
    throw new InvalidArgument(
      `${data.length} raw samples are not whole frames of ${describe(channels)} channels; ` +
        `channels is a whole number from 1 to ${MOST_CHANNELS} that divides them.`,
    );
  }
  checkRate(sampleRate);
  const frames = data.length / channels;
  checkSamples(frames, sampleRate);
  const samples = new Float32Array(frames);
  for (let i = 0; i < frames; i++) {
    let sum = 0;
    for (let c = 0; c < channels; c++) sum += data[i * channels + c];
    if (!isSample(sum / scale)) throw new InvalidArgument(`Raw sample ${i * channels} is ${sum}.`);
    samples[i] = sum / channels / scale;
  }
  return { samples, rate: sampleRate, warnings: [] };
}

function checkRate(rate: number): void {
  if (Number.isInteger(rate) && rate >= LEAST_RATE && rate <= MOST_RATE) return;
  throw new InvalidArgument(
    `The sound has ${
      describe(rate)
    } samples a second; whole rates from ${LEAST_RATE} to ${MOST_RATE} can be read.`,
  );
}
