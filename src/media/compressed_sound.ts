/** MP3, FLAC and Ogg (Opus, Vorbis, FLAC) through WebAssembly decoders, fed piece by piece so that a limit ends the work. */
import { MediaError } from "../errors.ts";
import { Breath } from "./breath.ts";
import { codecMissing } from "./codecs.ts";
import { Bytes } from "./headers/bytes.ts";
import { checkSamples, damagedSound, isSample, type MonoSound } from "./mono.ts";
import { readMp3 } from "./headers/mp3.ts";
import { withoutTags } from "./headers/tags.ts";
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

/** Flags of an Ogg page. */
const FIRST_PAGE = 2, LAST_PAGE = 4;
/** Links of an Ogg file at most; each has a decoder of its own. */
const MOST_LINKS = 1000;

/** Silence takes few bytes: a larger piece could hold gigabytes of it. */
const PIECE_BYTES = 4096;

/** Decodes an MP3, FLAC or Ogg file. Rejects with `MediaError` or the signal's reason. */
export async function readCompressed(
  format: "mp3" | "flac" | "ogg",
  bytes: Uint8Array,
  signal?: AbortSignal,
): Promise<MonoSound> {
  if (format !== "mp3") bytes = withoutTags(bytes); // decoders of the others lose frames before a tag
  if (format === "ogg") return await readChain(bytes, signal);
  const flac = format === "flac" ? readFlac(bytes) : undefined;
  if (flac !== undefined) checkSamples(flac.samples, flac.rate);
  const { samples: declared = flac?.samples, ended } = format === "mp3"
    ? readMp3(bytes)
    : { samples: undefined, ended: true };
  const sound = await decodeAll(format, bytes, ended, signal);
  warnOfEnd(sound, format, declared, ended);
  return sound;
}

/** The links of an Ogg file, one after the other: recordings of radio and joined files have several. */
async function readChain(bytes: Uint8Array, signal: AbortSignal | undefined): Promise<MonoSound> {
  const links: MonoSound[] = [];
  let length = 0, declared: number | undefined = 0, whole = true;
  const chain = readOgg(bytes);
  for (const link of chain) {
    const { codec, from, to, samples, ended } = link;
    const sound = await decodeAll(codec, bytes.subarray(from, to), ended, signal).catch((error) => {
      if (links.length > 0 && !ended && error instanceof MediaError) return undefined; // its beginning is not enough
      throw error;
    });
    whole &&= ended;
    declared = declared === undefined || samples === undefined ? undefined : declared + samples;
    if (sound === undefined) continue;
    // The last packet is longer than what remains.
    if (samples !== undefined) sound.samples = sound.samples.subarray(0, samples);
    const { rate } = links[0] ?? sound;
    if (sound.rate !== rate) {
      throw damagedSound(NAMES[codec], `its rate changes from ${rate} to ${sound.rate} Hz`);
    }
    checkSamples(length += sound.samples.length, rate);
    links.push(sound);
  }
  const all = {
    samples: links.length === 1 ? links[0].samples : joined(links.map(({ samples }) => samples)),
    rate: links[0].rate,
    warnings: links.flatMap(({ warnings }) => warnings),
  };
  warnOfEnd(all, chain[0].codec, declared, whole);
  return all;
}

/** Adds the warning that a file has fewer samples than it declares, or no end. */
function warnOfEnd(
  { samples, rate, warnings }: MonoSound,
  codec: Codec,
  declared: number | undefined,
  ended: boolean,
): void {
  if (ended && (declared === undefined || samples.length >= declared)) return;
  const of = declared === undefined ? "" : ` of ${(declared / rate).toFixed(2)}`;
  warnings.push({
    code: "sound_truncated",
    message: `The ${NAMES[codec]} file ends early, after ${
      (samples.length / rate).toFixed(2)
    }${of} s; what it holds was used.`,
  });
}

function joined(pieces: readonly Float32Array[]): Float32Array {
  const all = new Float32Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
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
  const warnings: MonoSound["warnings"] = [];
  if (lost > 0) {
    warnings.push({
      code: "sound_damaged",
      message: `${lost} frames of the ${NAMES[codec]} sound could not be decoded and were left out.`,
    });
  }
  return { samples: joined(pieces), rate, warnings };
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

/** A stream of an Ogg file from its first page to its last, with what stands between. */
interface OggLink {
  codec: Codec;
  /** bytes */ from: number;
  to: number;
  /** what the last page says, if it does */ samples?: number;
  /** the last page is marked as the last */ ended: boolean;
}

/** Walks the pages of an Ogg file. A page that begins a stream, after others of an earlier one, begins a link. */
function readOgg(bytes: Uint8Array): OggLink[] {
  const data = new Bytes(bytes);
  const links: OggLink[] = [];
  let serial = -1, last = 0, begins = false;
  const finish = (to: number) => {
    const link = links.at(-1)!;
    link.to = to;
    const skipped = link.codec === "opus" ? data.u16(link.from + 38, true) : 0;
    if (link.ended && link.codec !== "flac" && last > skipped) link.samples = last - skipped;
  };
  for (let at = 0; at + 27 <= data.length && data.ascii(at, 4) === "OggS";) {
    const segments = data.u8(at + 26);
    if (at + 27 + segments > data.length) break;
    let size = 27 + segments;
    for (let i = 0; i < segments; i++) size += data.u8(at + 27 + i);
    if (at + size > data.length) break;
    const flags = data.u8(at + 5), page = data.u32(at + 14, true);
    if ((flags & FIRST_PAGE) === 0) begins = false;
    else if (!begins) { // several that begin together belong to one link
      if (links.length === MOST_LINKS) {
        throw new MediaError(
          "media_too_large",
          `The Ogg file is a chain of more than ${MOST_LINKS} sounds. Cut it into parts.`,
        );
      }
      if (links.length > 0) finish(at);
      links.push({ codec: oggCodec(data, at), from: at, to: at, ended: false });
      [serial, last, begins] = [page, 0, true];
    }
    if (page === serial && links.length > 0) {
      const granule = data.u64(at + 6, true);
      if (granule < 2 ** 63) last = granule; // all ones: no packet ends on the page
      links.at(-1)!.ended = (flags & LAST_PAGE) !== 0;
    }
    at += size;
  }
  if (links.length === 0) links.push({ codec: oggCodec(data, 0), from: 0, to: 0, ended: false });
  finish(data.length);
  return links;
}

/** What the page at a byte begins. Throws `MediaError` where that is no sound that can be decoded. */
function oggCodec(data: Bytes, at: number): Codec {
  const head = data.length > at + 64 ? data.ascii(at + 28, 16) : "";
  if (head.startsWith("OpusHead")) return "opus";
  if (head.startsWith("\x01vorbis")) return "vorbis";
  if (head.startsWith("\x7fFLAC")) return "flac";
  throw new MediaError(
    data.length > at + 64 ? "unsupported_media" : "media_damaged",
    "The Ogg file holds neither Opus, Vorbis nor FLAC. Convert it to one of them, WAV or MP3.",
  );
}
