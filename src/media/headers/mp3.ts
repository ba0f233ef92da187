/** What an MP3 file says of its length: the frames that its first one announces, and where its last one ends. */
import { Bytes } from "./bytes.ts";
import { tagsEnd } from "./tags.ts";

/** See the head of this file. */
export interface Mp3Facts {
  /** Samples of one channel that it declares, without what its encoder added; undefined where it does not. */
  samples?: number;
  /** False where the last frame is cut off or bytes are missing that the first frame counted. */
  ended: boolean;
}

/** kbit/s by the index in a header of layer 3, for MPEG 1 and for MPEG 2 and 2.5. */
const BITRATES = [
  [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
  [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
];
/** Hertz by index, for MPEG 1. */
const RATES = [44_100, 48_000, 32_000];

/** Samples by which a decoder lags, which it cannot give where the encoder added fewer behind. */
const DECODER_DELAY = 529;

interface Frame {
  /** bytes */ size: number;
  samples: number;
  /** bytes between the header and what follows its side information */ side: number;
}

/** Reads what can be told without decoding. */
export function readMp3(bytes: Uint8Array): Mp3Facts {
  const data = new Bytes(bytes);
  const start = tagsEnd(bytes);
  const first = frameAt(data, start);
  if (first === undefined) return { ended: true }; // something else stands first; nothing can be told
  const declared = announced(data, start, first);
  let at = start, frame: Frame | undefined = first;
  while (frame !== undefined && at + frame.size <= data.length) frame = frameAt(data, at += frame.size);
  const inHeader = at < data.length && at + 4 > data.length && data.u8(at) === 0xff;
  const cut = frame !== undefined || inHeader;
  const missing = declared?.bytes !== undefined && start + declared.bytes > data.length;
  return { samples: declared?.samples, ended: !cut && !missing };
}

/** The frame whose header stands at a byte; undefined where none does. */
function frameAt(data: Bytes, at: number): Frame | undefined {
  if (at + 4 > data.length || data.u8(at) !== 0xff) return undefined;
  const [b, c, d] = [data.u8(at + 1), data.u8(at + 2), data.u8(at + 3)];
  const version = b >> 3 & 3, layer = b >> 1 & 3, bitrate = c >> 4, rate = c >> 2 & 3;
  if (b >> 5 !== 7 || version === 1 || layer !== 1 || bitrate === 0 || bitrate === 15 || rate === 3) {
    return undefined;
  }
  const one = version === 3, mono = d >> 6 === 3;
  const hertz = RATES[rate] / (one ? 1 : version === 2 ? 2 : 4);
  const samples = one ? 1152 : 576;
  const size = Math.floor(samples / 8 * BITRATES[one ? 0 : 1][bitrate] * 1000 / hertz) + (c >> 1 & 1);
  return { size, samples, side: one ? mono ? 17 : 32 : mono ? 9 : 17 };
}

/** Samples and bytes that an Info or Xing frame announces. */
function announced(
  data: Bytes,
  start: number,
  { samples, side }: Frame,
): { samples?: number; bytes?: number } | undefined {
  const info = start + 4 + side;
  if (info + 8 > data.length || !["Info", "Xing"].includes(data.ascii(info, 4))) return undefined;
  const flags = data.u32(info + 4);
  let at = info + 8;
  const next = (flag: number, size: number) => {
    if ((flags & flag) === 0 || at + size > data.length) return undefined;
    at += size;
    return size === 4 ? data.u32(at - 4) : 0;
  };
  const frames = next(1, 4), bytes = next(2, 4);
  next(4, 100); // places by time
  next(8, 4); // quality
  // Encoders tell 21 bytes later how many samples they added before and behind.
  const tells = frames !== undefined && at + 24 <= data.length && data.u8(at) !== 0;
  const added = tells ? data.u24(at + 21) : 0;
  const [before, behind] = [(added & 0xff) << 4 | added >> 12 & 15, (added >> 8 & 15) << 8 | added >> 16];
  return {
    samples: tells ? Math.max(0, frames * samples - before - Math.max(behind, DECODER_DELAY)) : undefined,
    bytes,
  };
}
