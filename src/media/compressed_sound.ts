/** MP3, FLAC and Ogg (Opus, Vorbis, FLAC) through WebAssembly decoders, fed piece by piece so that a limit ends the work. */
import { MediaError } from "../errors.ts";
import { Breath } from "./breath.ts";
import { codecMissing } from "./codecs.ts";
import { Bytes } from "./headers/bytes.ts";
import { checkSamples, damagedSound, isSample, type MonoSound } from "./mono.ts";
import { readMp3 } from "./headers/mp3.ts";
import { importPackage } from "./packages.ts";

type Codec = "mp3" | "flac" | "opus" | "vorbis";

interface DecodedPiece {
  channelData: Float32Array[];
  samplesDecoded: number;
  sampleRate: number;
  /** frames that could not be decoded */ errors?: readonly unknown[];
}

interface Decoder {
  readonly ready: Promise<void>;
  decode(bytes: Uint8Array): DecodedPiece | Promise<DecodedPiece>;
  flush?(): DecodedPiece | Promise<DecodedPiece>;
  free(): void;
}

const NAMES: Record<Codec, string> = { mp3: "MP3", flac: "FLAC", opus: "Opus", vorbis: "Vorbis" };

/** Silence takes few bytes: a larger piece could hold gigabytes of it. */
const PIECE_BYTES = 4096;

/** Decodes an MP3, FLAC or Ogg file. Rejects with `MediaError` or the signal's reason. */
export async function readCompressed(
  format: "mp3" | "flac" | "ogg",
  bytes: Uint8Array,
  signal?: AbortSignal,
): Promise<MonoSound> {
  const ogg = format === "ogg" ? readOgg(bytes) : undefined;
  const codec = ogg?.codec ?? format as "mp3" | "flac";
  const mp3 = codec === "mp3" ? readMp3(bytes) : undefined;
  const flac = codec === "flac" ? readFlac(bytes) : undefined;
  if (flac !== undefined) checkSamples(flac.samples, flac.rate);
  const declared = ogg?.samples ?? mp3?.samples ?? flac?.samples;
  const ended = ogg?.ended ?? mp3?.ended ?? true;
  const sound = await decodeAll(codec, bytes, ended, signal);
  const { samples, rate } = sound;
  if (ogg?.samples !== undefined && samples.length > ogg.samples) {
    sound.samples = samples.subarray(0, ogg.samples); // the last packet is longer than what remains
  }
  const short = !ended || declared !== undefined && samples.length < declared;
  if (short) {
    const of = declared === undefined ? "" : ` of ${(declared / rate).toFixed(2)}`;
    sound.warnings.push({
      code: "sound_truncated",
      message: `The ${NAMES[codec]} file ends early, after ${
        (samples.length / rate).toFixed(2)
      }${of} s; what it holds was used.`,
    });
  }
  return sound;
}

async function decodeAll(
  codec: Codec,
  bytes: Uint8Array,
  ended: boolean,
  signal?: AbortSignal,
): Promise<MonoSound> {
  const decoder = await openDecoder(codec);
  const breath = new Breath(signal);
  const pieces: Float32Array[] = [];
  let rate = 0, length = 0, lost = 0;
  const add = (piece: DecodedPiece) => {
    lost += piece.errors?.length ?? 0;
    if (piece.samplesDecoded === 0) return;
    if (rate !== 0 && piece.sampleRate !== rate) {
      throw damagedSound(NAMES[codec], `its rate changes from ${rate} to ${piece.sampleRate} Hz`);
    }
    rate = piece.sampleRate;
    checkSamples(length += piece.samplesDecoded, rate);
    const mean = meanOf(piece);
    const wrong = mean.findIndex((sample) => !isSample(sample));
    if (wrong >= 0) {
      throw damagedSound(NAMES[codec], `sample ${length - mean.length + wrong} is ${mean[wrong]}`);
    }
    pieces.push(mean);
  };
  try {
    for (let at = 0; at < bytes.length; at += PIECE_BYTES) {
      await breath.take();
      add(await decoder.decode(bytes.subarray(at, at + PIECE_BYTES)));
    }
    if (decoder.flush !== undefined) add(await decoder.flush());
  } catch (cause) {
    signal?.throwIfAborted();
    if (cause instanceof MediaError) throw cause;
    throw damagedSound(NAMES[codec], ended ? "its data contradict themselves" : "it ends early", cause);
  } finally {
    decoder.free();
  }
  if (length === 0) {
    throw damagedSound(NAMES[codec], ended ? "nothing in it can be decoded" : "it ends early");
  }
  const samples = new Float32Array(length);
  let at = 0;
  for (const piece of pieces) {
    samples.set(piece, at);
    at += piece.length;
  }
  const warnings: MonoSound["warnings"] = [];
  if (lost > 0) {
    warnings.push({
      code: "sound_damaged",
      message: `${lost} frames of the ${NAMES[codec]} sound could not be decoded and were left out.`,
    });
  }
  return { samples, rate, warnings };
}

async function openDecoder(codec: Codec): Promise<Decoder> {
  try {
    const decoder = await create(codec);
    await decoder.ready;
    return decoder;
  } catch (cause) {
    throw codecMissing(NAMES[codec], cause);
  }
}

type DecoderClass = new () => Decoder;

async function create(codec: Codec): Promise<Decoder> {
  switch (codec) {
    case "mp3":
      return new (await importPackage<{ MPEGDecoder: DecoderClass }>("mp3")).MPEGDecoder();
    case "flac":
      return new (await importPackage<{ FLACDecoder: DecoderClass }>("flac")).FLACDecoder();
    case "opus":
      return new (await importPackage<{ OggOpusDecoder: DecoderClass }>("opus")).OggOpusDecoder();
    case "vorbis":
      return new (await importPackage<{ OggVorbisDecoder: DecoderClass }>("vorbis")).OggVorbisDecoder();
  }
}

function meanOf({ channelData, samplesDecoded }: DecodedPiece): Float32Array {
  if (channelData.length === 1) return channelData[0].slice(0, samplesDecoded);
  const mean = new Float32Array(samplesDecoded);
  for (let i = 0; i < samplesDecoded; i++) {
    let sum = 0;
    for (const channel of channelData) sum += channel[i];
    mean[i] = sum / channelData.length;
  }
  return mean;
}

/** Samples and rate that a FLAC file declares, if it does. */
function readFlac(bytes: Uint8Array): { samples: number; rate: number } | undefined {
  const data = new Bytes(bytes);
  if (data.length < 42 || data.ascii(0, 4) !== "fLaC") return undefined;
  const samples = (data.u8(21) & 15) * 2 ** 32 + data.u32(22);
  return samples === 0 ? undefined : { samples, rate: data.u32(18) >>> 12 };
}

interface OggFacts {
  codec: Codec;
  /** what the last page says, if it does */ samples?: number;
  /** the last page is marked as the last */ ended: boolean;
}

/** Walks the pages of an Ogg file. */
function readOgg(bytes: Uint8Array): OggFacts {
  const data = new Bytes(bytes);
  const head = data.length > 64 ? data.ascii(28, 16) : "";
  const codec = head.startsWith("OpusHead")
    ? "opus"
    : head.startsWith("\x01vorbis")
    ? "vorbis"
    : head.startsWith("\x7fFLAC")
    ? "flac"
    : undefined;
  if (codec === undefined) {
    throw new MediaError(
      data.length > 64 ? "unsupported_media" : "media_damaged",
      "The Ogg file holds neither Opus, Vorbis nor FLAC. Convert it to one of them, WAV or MP3.",
    );
  }
  let ended = false, last = 0;
  for (let at = 0; at + 27 <= data.length && data.ascii(at, 4) === "OggS";) {
    const segments = data.u8(at + 26);
    if (at + 27 + segments > data.length) break;
    let size = 27 + segments;
    for (let i = 0; i < segments; i++) size += data.u8(at + 27 + i);
    if (at + size > data.length) break;
    const granule = data.u64(at + 6, true);
    if (granule < 2 ** 63) last = granule; // all ones: no packet ends on the page
    ended = (data.u8(at + 5) & 4) !== 0;
    at += size;
  }
  const skipped = codec === "opus" ? data.u16(38, true) : 0;
  return { codec, ended, samples: ended && codec !== "flac" && last > skipped ? last - skipped : undefined };
}
