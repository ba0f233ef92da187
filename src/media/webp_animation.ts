/** Animated WebP: each frame is made a still picture, decoded, and put on the canvas. */
import { type AnimationFrame, type Area, checkAnimation, clear, LEAST_DELAY } from "./animation.ts";
import { decodeImage } from "./decode_apart.ts";
import { Bytes, Truncated } from "./headers/bytes.ts";
import { damagedImage, imageHeader, riffChunks } from "./headers/image.ts";

interface Frame extends Area {
  /** milliseconds */ duration: number;
  /** replace what is below instead of blending */ replace: boolean;
  /** clear its place afterwards */ dispose: boolean;
  /** chunks of the picture: from, to */ from: number;
  to: number;
}

/** Bytes before the chunks of a frame. */
const FRAME_HEADER = 16;

/** The first `most` frames. Throws `MediaError`. */
export async function* webpFrames(bytes: Uint8Array, most: number): AsyncGenerator<AnimationFrame> {
  const { width, height } = imageHeader("webp", bytes);
  const frames = listFrames(bytes).slice(0, most);
  checkAnimation(width, height, frames.length);
  const data = new Uint8Array(width * height * 4);
  let time = 0;
  for (const [i, frame] of frames.entries()) {
    if (frame.x + frame.width > width || frame.y + frame.height > height) {
      throw damagedImage("webp", `frame ${i} is larger than the picture`);
    }
    const still = await decodeImage("webp", stillPicture(bytes, frame), frame.width * frame.height);
    if (still.width !== frame.width || still.height !== frame.height) {
      throw damagedImage("webp", `frame ${i} has another size than it declares`);
    }
    draw(data, width, still.data, frame);
    yield { canvas: { data, width, height }, time };
    time += frame.duration > 10 ? frame.duration / 1000 : LEAST_DELAY;
    if (frame.dispose) clear(data, width, frame);
  }
}

/** Number of frames. Throws `MediaError`. */
export function webpLength(bytes: Uint8Array): number {
  return listFrames(bytes).length;
}

function listFrames(bytes: Uint8Array): Frame[] {
  const data = new Bytes(bytes);
  const frames: Frame[] = [];
  try {
    // Chunks end where the file says it ends: one that lost its last frames is damaged, not shorter.
    if (data.u32(4, true) + 8 > data.length) throw new Truncated(`${data.length} bytes`);
    for (const { kind, from, to } of riffChunks(data)) {
      if (kind !== "ANMF") continue;
      if (to < from + FRAME_HEADER) throw damagedImage("webp", `a frame has ${to - from} bytes`);
      const flags = data.u8(from + 15);
      frames.push({
        x: data.u24(from) * 2,
        y: data.u24(from + 3) * 2,
        width: data.u24(from + 6) + 1,
        height: data.u24(from + 9) + 1,
        duration: data.u24(from + 12),
        replace: (flags & 2) !== 0,
        dispose: (flags & 1) !== 0,
        from: from + FRAME_HEADER,
        to,
      });
    }
  } catch (cause) {
    if (!(cause instanceof Truncated)) throw cause;
    throw damagedImage("webp", "it ends early", cause);
  }
  return frames;
}

/** A file of one frame: the extended header, then the frame's own chunks. */
function stillPicture(bytes: Uint8Array, { width, height, from, to }: Frame): Uint8Array {
  const file = new Uint8Array(30 + to - from);
  const view = new DataView(file.buffer);
  const ascii = (at: number, text: string) => file.set(new TextEncoder().encode(text), at);
  ascii(0, "RIFF");
  view.setUint32(4, file.length - 8, true);
  ascii(8, "WEBPVP8X");
  view.setUint32(16, 10, true);
  file[20] = 0x10; // may have transparency
  file.set([width - 1, width - 1 >> 8, width - 1 >> 16, height - 1, height - 1 >> 8, height - 1 >> 16], 24);
  file.set(bytes.subarray(from, to), 30);
  return file;
}

function draw(
  canvas: Uint8Array,
  stride: number,
  pixels: Uint8Array | Uint8ClampedArray,
  { x, y, width, height, replace }: Frame,
): void {
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const from = (row * width + column) * 4, to = ((y + row) * stride + x + column) * 4;
      const alpha = pixels[from + 3];
      if (replace || alpha === 255 || canvas[to + 3] === 0) {
        for (let c = 0; c < 4; c++) canvas[to + c] = pixels[from + c];
      } else if (alpha > 0) {
        const below = canvas[to + 3] * (255 - alpha) / 255;
        const sum = alpha + below;
        for (let c = 0; c < 3; c++) {
          canvas[to + c] = Math.round((pixels[from + c] * alpha + canvas[to + c] * below) / sum);
        }
        canvas[to + 3] = Math.round(sum);
      }
    }
  }
}
