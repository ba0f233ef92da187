/**
 * Videos and sounds that only an installed `ffmpeg` reads. It gets one local file, with the demuxer that the bytes asked for, so that
 * no file can make it open another one.
 */
import { requirePermission } from "../../ffi/permissions.ts";
import { MediaError, MissingPermission } from "../errors.ts";
import { sampledFrames, USUAL_FPS, type Video, type VideoFrame, type VideoOptions } from "./frames.ts";
import { CLIP_SECONDS, SAMPLE_RATE } from "./mel.ts";
import { checkSamples, MAX_SAMPLES, type MonoSound } from "./mono.ts";
import { checkPixels } from "./picture.ts";
import { describeSource, readHead } from "./source.ts";
import { isTransportStream, type MediaFormat } from "./sniff.ts";
import type { Warning } from "../warning.ts";

/** Demuxers by format. */
const DEMUXERS: Partial<Record<MediaFormat, string>> = {
  mp4: "mov",
  webm: "matroska",
  avi: "avi",
  asf: "asf",
  flv: "flv",
  aac: "aac",
  aiff: "aiff",
  caf: "caf",
};

/** Whether `ffmpeg` is asked for sounds of this format. */
export function isFfmpegFormat(format: MediaFormat | undefined): boolean {
  return format !== undefined && (format === "mpeg" || DEMUXERS[format] !== undefined);
}

/** Opens a video file. Rejects with `MediaError` (`ffmpeg_missing` and others), `MissingPermission` or the signal's reason. */
export async function openWithFfmpeg(
  source: string | Uint8Array<ArrayBuffer>,
  format: MediaFormat | undefined,
  options: VideoOptions,
): Promise<Video> {
  if (format === undefined || !isFfmpegFormat(format)) {
    const what = format === undefined ? "of no known format" : format.toUpperCase();
    throw new MediaError(
      format === undefined ? "unknown_media" : "unsupported_media",
      `${
        describeSource(source)
      } is ${what}. A video is MP4, MOV, WebM, Matroska, AVI, MPEG, WMV or FLV, or an animated GIF or WebP.`,
    );
  }
  const { signal } = options;
  await checkFfmpeg(format);
  const input = await localFile(source, format, signal);
  try {
    const facts = await look(input, signal);
    let sound: MonoSound | undefined;
    if (options.sound && facts.hasSound) sound = await samplesOf(input, CLIP_SECONDS, signal);
    return {
      frames: framesOf(input, facts, options),
      warnings: facts.warnings,
      sound: () => Promise.resolve(sound && { ...sound, seconds: facts.seconds }),
    };
  } catch (error) {
    await input.remove();
    throw error;
  }
}

/** The first `most` seconds of the sound of a file, at 16 kHz. Rejects as `openWithFfmpeg`. */
export async function soundWithFfmpeg(
  source: string | Uint8Array<ArrayBuffer>,
  format: MediaFormat,
  signal: AbortSignal | undefined,
  most: number,
): Promise<MonoSound> {
  await checkFfmpeg(format);
  const input = await localFile(source, format, signal);
  try {
    const { hasSound, seconds, warnings } = await look(input, signal);
    if (!hasSound) {
      throw new MediaError("media_empty", `The ${format.toUpperCase()} file has no sound. Pass another one.`);
    }
    const sound = await samplesOf(input, most, signal);
    // What the file says of its length is not trusted where all of it was read.
    return { ...sound, warnings, ...(sound.samples.length < most * SAMPLE_RATE ? {} : { seconds }) };
  } finally {
    await input.remove();
  }
}

interface LocalFile {
  /** arguments that name it */ arguments: string[];
  /** for messages */ name: string;
  /** removes what was made for it */ remove(): Promise<void>;
}

/** Rejects with `MediaError` (`ffmpeg_missing`) or `MissingPermission` where a format needs an `ffmpeg` that cannot be had. */
export async function checkFfmpeg(format: MediaFormat | undefined): Promise<void> {
  if (format === undefined || !isFfmpegFormat(format)) return;
  await requirePermission({ name: "run", command: "ffmpeg" }, `to read ${format.toUpperCase()} files`);
  try {
    await new Deno.Command("ffmpeg", { args: ["-version"], stdin: "null", stdout: "null", stderr: "null" })
      .output();
  } catch (cause) {
    if (!(cause instanceof Deno.errors.NotFound)) throw cause;
    throw new MediaError(
      "ffmpeg_missing",
      `Reading ${format.toUpperCase()} files takes an ffmpeg on the PATH, and there is none. Install it, or pass ` +
        `{frames, fps, audio}, an animated GIF or WebP, or sound as WAV, MP3, FLAC or Ogg.`,
      { cause },
    );
  }
}

/** The path, or the bytes in a temporary file, as a file that `ffmpeg` can open. */
async function localFile(
  source: string | Uint8Array<ArrayBuffer>,
  format: MediaFormat,
  signal: AbortSignal | undefined,
): Promise<LocalFile> {
  const head = await readHead(source, signal);
  const demuxer = DEMUXERS[format] ?? (isTransportStream(head) ? "mpegts" : "mpeg");
  const name = describeSource(source);
  const argumentsOf = (path: string) => ["-f", demuxer, "-i", `file:${path}`];
  if (typeof source === "string") return { arguments: argumentsOf(source), name, remove: async () => {} };
  let temporary: string | undefined;
  const remove = async () => {
    if (temporary !== undefined) await Deno.remove(temporary).catch(() => {});
  };
  try {
    temporary = await Deno.makeTempFile({ prefix: "markbase-" });
    await Deno.writeFile(temporary, source, { signal });
    return { arguments: argumentsOf(temporary), name, remove };
  } catch (cause) {
    await remove();
    if (!(cause instanceof Deno.errors.NotCapable)) throw cause;
    const purpose = "to hand a video that is no file to ffmpeg";
    throw new MissingPermission("--allow-write", purpose, { cause });
  }
}

interface Facts {
  frames: number;
  fps: number;
  /** undefined where the file does not say */ seconds?: number;
  hasSound: boolean;
  /** of a file that ends before it says it does */ warnings: Warning[];
}

/** Seconds that a file may end early: streams and containers do not agree to the last frame. */
const SLACK_SECONDS = 0.5;

/** Counts the packets of the first video stream without decoding them, and notes whether there is sound. */
async function look(input: LocalFile, signal: AbortSignal | undefined): Promise<Facts> {
  const args = [
    "-map",
    "0:v:0?",
    "-map",
    "0:a:0?",
    "-c",
    "copy",
    "-f",
    "null",
    "-progress",
    "pipe:1",
    "-nostats",
    "-",
  ];
  const { stdout, stderr } = await run(input, args, signal);
  const text = new TextDecoder().decode(stdout);
  const last = (name: string) => Number([...text.matchAll(new RegExp(`^${name}=(\\d+)`, "gm"))].at(-1)?.[1]);
  const frames = last("frame") || 0;
  const reached = (last("out_time_us") || 0) / 1e6;
  // Lines of metadata begin with their names, so that no title passes for one of these.
  const named = Number(/^ *Stream #.*Video:.*?([\d.]+) fps/m.exec(stderr)?.[1]);
  const fps = named > 0 ? named : frames > 0 && reached > 0 ? frames / reached : USUAL_FPS;
  const [, hours, minutes, rest] = /^ *Duration: (\d+):(\d+):([\d.]+)/m.exec(stderr) ?? [];
  // Where nothing is written down, ffmpeg guesses.
  const told = rest !== undefined && !stderr.includes("Estimating duration");
  const seconds = told ? Number(hours) * 3600 + Number(minutes) * 60 + Number(rest) : undefined;
  const warnings: Warning[] = [];
  // The last packet need not hold the last frame, so that frames are counted too.
  const end = Math.max(reached, frames / fps);
  if (seconds !== undefined && end < seconds - SLACK_SECONDS) {
    warnings.push({
      code: "media_truncated",
      message: `${input.name} ends early, after ${end.toFixed(2)} of ${
        seconds.toFixed(2)
      } s; what it holds was used.`,
    });
  }
  return { frames, fps, seconds, hasSound: /^ *Stream #0:\d+.*Audio:/m.test(stderr), warnings };
}

async function* framesOf(
  input: LocalFile,
  { frames, fps, warnings }: Facts,
  options: VideoOptions,
): AsyncGenerator<VideoFrame> {
  try {
    if (frames === 0) throw failed(input, "it has no video");
    const wanted = sampledFrames(frames, options.frames);
    // Renumbered times keep ffmpeg from filling the gaps between the chosen frames.
    const chosen = wanted.map((index) => `eq(n\\,${index})`).join("+");
    const args = ["-map", "0:v:0", "-vf", `select=${chosen},setpts=N/FRAME_RATE/TB`];
    args.push("-frames:v", String(wanted.length), "-pix_fmt", "rgb24"); // of videos of ten bits too
    args.push("-f", "image2pipe", "-c:v", "ppm", "-");
    const child = spawn(input, args, options.signal);
    const stderr = new Response(child.stderr).text().catch(() => "");
    let index = 0;
    for await (const picture of ppmPictures(child.stdout)) {
      yield { picture, time: wanted[Math.min(index++, wanted.length - 1)] / fps };
    }
    options.signal?.throwIfAborted();
    const { success } = await child.status;
    if (!success) throw failed(input, await stderr);
    await stderr;
    if (index > 0 && index < wanted.length) {
      warnings.push({
        code: "frames_missing",
        message:
          `${index} of the ${wanted.length} sampled frames of ${input.name} could be decoded; the others were left out.`,
      });
    }
  } finally {
    await input.remove();
  }
}

/** Mono samples of the first sound stream, of no more than `most` seconds. */
async function samplesOf(
  input: LocalFile,
  most: number,
  signal: AbortSignal | undefined,
): Promise<MonoSound> {
  // Silence takes few bytes: what is too long is told by a little more than is allowed.
  const limit = Math.min(most, (MAX_SAMPLES + SAMPLE_RATE) / SAMPLE_RATE);
  const args = [
    "-map",
    "0:a:0",
    "-t",
    String(limit),
    "-ac",
    "1",
    "-ar",
    String(SAMPLE_RATE),
    "-f",
    "f32le",
    "-",
  ];
  const { stdout } = await run(input, args, signal);
  const samples = new Float32Array(stdout.slice(0, stdout.length & ~3).buffer);
  checkSamples(samples.length, SAMPLE_RATE);
  return { samples, rate: SAMPLE_RATE, warnings: [] };
}

function spawn(input: LocalFile, args: string[], signal: AbortSignal | undefined): Deno.ChildProcess {
  return new Deno.Command("ffmpeg", {
    args: ["-hide_banner", "-nostdin", "-protocol_whitelist", "file,pipe", ...input.arguments, ...args],
    stdin: "null",
    stdout: "piped",
    stderr: "piped",
    signal,
  }).spawn();
}

async function run(
  input: LocalFile,
  args: string[],
  signal: AbortSignal | undefined,
): Promise<{ stdout: Uint8Array<ArrayBuffer>; stderr: string }> {
  const { stdout, stderr, success } = await spawn(input, args, signal).output();
  signal?.throwIfAborted();
  const text = new TextDecoder().decode(stderr);
  if (!success) throw failed(input, text);
  return { stdout: new Uint8Array(stdout), stderr: text };
}

function failed({ name }: LocalFile, text: string): MediaError {
  const reason = text.trim().split("\n").at(-1)?.replace(/\.\s*$/, "") ?? "";
  return new MediaError(
    "media_damaged",
    `${name} cannot be read by ffmpeg: ${reason}. Convert it, or pass frames.`,
  );
}

/** Pictures of a stream of binary PPM files of 8 bits. */
async function* ppmPictures(stream: ReadableStream<Uint8Array>): AsyncGenerator<VideoFrame["picture"]> {
  let rest = new Uint8Array();
  let picture: VideoFrame["picture"] | undefined;
  let filled = 0;
  for await (const chunk of stream) {
    const joined = new Uint8Array(rest.length + chunk.length);
    joined.set(rest);
    joined.set(chunk, rest.length);
    let at = 0;
    for (;;) {
      if (picture === undefined) {
        const header = /^P6\s(\d+)\s(\d+)\s255\s/.exec(
          String.fromCharCode(...joined.subarray(at, at + 40)),
        );
        if (header === null) {
          if (joined.length - at < 40) break;
          throw new MediaError(
            "media_damaged",
            "ffmpeg gave frames of an unknown form. Install another version.",
          );
        }
        const [width, height] = [Number(header[1]), Number(header[2])];
        checkPixels(width, height);
        picture = { width, height, pixels: new Uint8Array(width * height * 3) };
        filled = 0;
        at += header[0].length;
      }
      const count = Math.min(picture.pixels.length - filled, joined.length - at);
      picture.pixels.set(joined.subarray(at, at + count), filled);
      filled += count;
      at += count;
      if (filled < picture.pixels.length) break;
      yield picture;
      picture = undefined;
      if (at === joined.length) break;
    }
    rest = joined.slice(at);
  }
  if (picture !== undefined) {
    throw new MediaError("media_damaged", "The last frame of the video is incomplete. Convert it again.");
  }
}
