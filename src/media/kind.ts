/** Tells pictures from videos. */
import { parseGif } from "./gif.ts";
import { imageHeader } from "./headers/image.ts";
import { MAX_VIDEO_BYTES } from "./frames.ts";
import { imageFormat } from "./picture.ts";
import { readHead, readSource } from "./source.ts";
import { sniff } from "./sniff.ts";

/** Whether a file is a video, an animation among them, or else a picture. Rejects with `MediaError` where it is neither or cannot be read. */
export async function isVideo(
  source: string | Uint8Array<ArrayBuffer>,
  signal: AbortSignal | undefined,
): Promise<boolean> {
  const head = await readHead(source, signal);
  const format = sniff(head);
  if (format === "gif") {
    return parseGif(await readSource(source, { limit: MAX_VIDEO_BYTES, signal })).frames.length > 1;
  }
  if (format === "webp") return imageHeader(format, head).animated ?? false;
  if (format !== undefined && ["mp4", "webm", "avi", "asf", "flv", "mpeg"].includes(format)) return true;
  imageFormat(format);
  return false;
}
