/** Writes the formats of the example files: WAV and animated GIF. */
import type { Drawing } from "./draw.ts";

/** 16-bit mono WAV of samples from −1 to 1. */
export function wav(samples: Float32Array, rate: number): Uint8Array {
  const bytes = new Uint8Array(44 + samples.length * 2);
  const view = new DataView(bytes.buffer);
  const ascii = (at: number, text: string) => bytes.set(new TextEncoder().encode(text), at);
  ascii(0, "RIFF");
  view.setUint32(4, bytes.length - 8, true);
  ascii(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channel
  view.setUint32(24, rate, true);
  view.setUint32(28, rate * 2, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  ascii(36, "data");
  view.setUint32(40, samples.length * 2, true);
  samples.forEach((sample, i) => {
    view.setInt16(44 + 2 * i, Math.round(Math.max(-1, Math.min(1, sample)) * 32767), true);
  });
  return bytes;
}

/** Animated GIF of pictures of one size that have at most 256 colours together; each is seen for `seconds`. */
export function gif(pictures: readonly Drawing[], seconds: number): Uint8Array {
  const { width, height } = pictures[0];
  const palette = new Map<number, number>();
  const frames = pictures.map(({ data }) =>
    Uint8Array.from({ length: width * height }, (_, i) => {
      const colour = data[i * 3] << 16 | data[i * 3 + 1] << 8 | data[i * 3 + 2];
      if (!palette.has(colour)) palette.set(colour, palette.size);
      return palette.get(colour)!;
    })
  );
  if (palette.size > 256) throw new RangeError(`The pictures have ${palette.size} colours, 256 at most.`);
  const word = (value: number) => [value & 255, value >> 8];
  const bytes: number[] = [
    ...new TextEncoder().encode("GIF89a"),
    ...word(width),
    ...word(height),
    0xf7,
    0,
    0,
  ];
  const colours = [...palette.keys()];
  for (let i = 0; i < 256; i++) bytes.push(colours[i] >> 16 & 255, colours[i] >> 8 & 255, colours[i] & 255);
  for (const frame of frames) {
    bytes.push(0x21, 0xf9, 4, 0, ...word(Math.round(seconds * 100)), 0, 0);
    bytes.push(0x2c, 0, 0, 0, 0, ...word(width), ...word(height), 0, 8);
    const codes = compress(frame);
    for (let at = 0; at < codes.length; at += 255) {
      bytes.push(Math.min(255, codes.length - at), ...codes.slice(at, at + 255));
    }
    bytes.push(0);
  }
  return Uint8Array.from([...bytes, 0x3b]);
}

/** LZW codes of 8-bit indices. */
function compress(indices: Uint8Array): number[] {
  const bytes: number[] = [];
  let held = 0, bits = 0, width = 9;
  const put = (code: number) => {
    held |= code << bits;
    for (bits += width; bits >= 8; bits -= 8, held >>>= 8) bytes.push(held & 255);
  };
  let codes = new Map<string, number>(), next = 258;
  put(256);
  let prefix = String(indices[0]), code = indices[0];
  for (const index of indices.subarray(1)) {
    const text = `${prefix} ${index}`;
    const known = codes.get(text);
    if (known !== undefined) {
      [prefix, code] = [text, known];
      continue;
    }
    put(code);
    if (next === 4096) {
      put(256);
      [codes, next, width] = [new Map(), 258, 9];
    } else {
      codes.set(text, next);
      if (next++ === 1 << width) width++;
    }
    [prefix, code] = [String(index), index];
  }
  put(code);
  put(257);
  if (bits > 0) bytes.push(held & 255);
  return bytes;
}
