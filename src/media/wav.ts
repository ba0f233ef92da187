/** WAV files (RIFF, RF64, BW64): integers of 8 to 32 bits, floats of 32 and 64, A-law and mu-law, extensible headers. */
import { MediaError } from "../errors.ts";
import { Bytes, Truncated } from "./headers/bytes.ts";
import { checkSamples, damagedSound, isSample, type MonoSound } from "./mono.ts";

interface Format {
  /** 1 integers, 3 floats, 6 A-law, 7 mu-law */ code: number;
  channels: number;
  rate: number;
  /** bytes of one frame of all channels */ frameBytes: number;
  /** bytes of one sample */ sampleBytes: number;
}

const INTEGER = 1, FLOAT = 3, A_LAW = 6, MU_LAW = 7, EXTENSIBLE = 0xfffe;
const UNKNOWN_SIZE = 0xffffffff;

/**
 * Reads a WAV file to one channel, the mean of all. Sizes in the header are not trusted: a file that ends early gives what it
 * has, with a warning. Throws `MediaError` (`media_damaged`, `unsupported_media`).
 */
export function readWav(bytes: Uint8Array): MonoSound {
  const data = new Bytes(bytes);
  let format: Format | undefined;
  let longSize: number | undefined; // of RF64
  try {
    for (let at = 12; at + 8 <= data.length;) {
      const kind = data.ascii(at, 4);
      const size = data.u32(at + 4, true);
      if (kind === "ds64") longSize = data.u64(at + 16, true);
      if (kind === "fmt ") format = readFormat(data, at + 8, size);
      if (kind === "data") {
        if (format === undefined) throw damagedSound("WAV", "its samples come before their format");
        const declared = size === UNKNOWN_SIZE ? longSize : size;
        return readSamples(data, at + 8, declared, format);
      }
      at += 8 + size + (size & 1);
    }
  } catch (cause) {
    if (!(cause instanceof Truncated)) throw cause;
    throw damagedSound("WAV", "it ends within its header", cause);
  }
  throw damagedSound("WAV", "it has no samples");
}

function readFormat(data: Bytes, at: number, size: number): Format {
  if (size < 16) throw damagedSound("WAV", `its format takes ${size} bytes instead of 16`);
  let code = data.u16(at, true);
  const channels = data.u16(at + 2, true);
  const rate = data.u32(at + 4, true);
  const frameBytes = data.u16(at + 12, true);
  const bits = data.u16(at + 14, true);
  if (code === EXTENSIBLE) {
    if (size < 40) throw damagedSound("WAV", `its extensible format takes ${size} bytes instead of 40`);
    code = data.u16(at + 24, true);
  }
  if (channels === 0 || frameBytes === 0 || frameBytes % channels !== 0) {
    throw damagedSound("WAV", `it has ${channels} channels in frames of ${frameBytes} bytes`);
  }
  const sampleBytes = frameBytes / channels;
  const widths: Record<number, number[]> = {
    [INTEGER]: [1, 2, 3, 4],
    [FLOAT]: [4, 8],
    [A_LAW]: [1],
    [MU_LAW]: [1],
  };
  if (widths[code] === undefined) {
    throw new MediaError(
      "unsupported_media",
      `The WAV file holds sound of kind 0x${code.toString(16)}. Convert it to PCM, FLAC, MP3 or Ogg.`,
    );
  }
  if (!widths[code].includes(sampleBytes) || bits > sampleBytes * 8 || bits <= (sampleBytes - 1) * 8) {
    throw damagedSound("WAV", `its samples of ${bits} bits take ${sampleBytes} bytes`);
  }
  return { code, channels, rate, frameBytes, sampleBytes };
}

function readSamples(data: Bytes, from: number, declared: number | undefined, format: Format): MonoSound {
  const { channels, rate, frameBytes, sampleBytes } = format;
  const available = data.length - from;
  // Recorders that write to a pipe leave the size 0 or all ones.
  const open = declared === undefined || declared === 0 && available > 0 && !areChunks(data, from);
  const usable = open ? available : Math.min(available, declared);
  const frames = Math.floor(usable / frameBytes);
  checkSamples(frames, rate);
  const warnings: MonoSound["warnings"] = [];
  if (!open && declared > available) {
    warnings.push({
      code: "sound_truncated",
      message:
        `The WAV file declares ${declared} bytes of samples but holds ${available}; what it holds was used.`,
    });
  }
  const sample = sampleReader(data.bytes, format);
  const samples = new Float32Array(frames);
  for (let i = 0; i < frames; i++) {
    let sum = 0;
    for (let c = 0; c < channels; c++) sum += sample(from + i * frameBytes + c * sampleBytes);
    if (!isSample(sum)) throw damagedSound("WAV", `sample ${i} is ${sum}`);
    samples[i] = sum / channels;
  }
  return { samples, rate, warnings };
}

/** Whether the rest of a file is a row of chunks. */
function areChunks(data: Bytes, from: number): boolean {
  let at = from;
  while (at + 8 <= data.length) {
    const size = data.u32(at + 4, true);
    at += 8 + size + (size & 1);
  }
  return at === data.length || at === data.length + 1; // the last one may lack its padding
}

/** A function that reads the sample at a byte as −1 to 1. */
function sampleReader(bytes: Uint8Array, { code, sampleBytes }: Format): (at: number) => number {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (code === FLOAT) {
    return sampleBytes === 4 ? (at) => view.getFloat32(at, true) : (at) => view.getFloat64(at, true);
  }
  if (code === A_LAW) return (at) => aLaw(bytes[at]) / 32768;
  if (code === MU_LAW) return (at) => muLaw(bytes[at]) / 32768;
  switch (sampleBytes) {
    case 1:
      return (at) => (bytes[at] - 128) / 128;
    case 2:
      return (at) => view.getInt16(at, true) / 32768;
    case 3:
      return (at) => (view.getInt8(at + 2) * 65536 + view.getUint16(at, true)) / 8388608;
    default:
      return (at) => view.getInt32(at, true) / 2147483648;
  }
}

/** G.711 A-law to 16 bits. */
function aLaw(byte: number): number {
  const code = byte ^ 0x55;
  const exponent = code >> 4 & 7, mantissa = (code & 15) << 4;
  const size = exponent === 0 ? mantissa + 8 : mantissa + 0x108 << exponent - 1;
  return code & 0x80 ? size : -size;
}

/** G.711 mu-law to 16 bits. */
function muLaw(byte: number): number {
  const code = ~byte & 0xff;
  const size = (((code & 15) << 3) + 0x84 << (code >> 4 & 7)) - 0x84;
  return code & 0x80 ? -size : size;
}
