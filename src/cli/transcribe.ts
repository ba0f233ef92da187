/** `markbase transcribe`: recordings to text or subtitles, long ones in overlapping chunks. */
import type { Message, Model, Warning } from "../../mod.ts";
import { InvalidArgument } from "../errors.ts";
import { checkFfmpeg } from "../media/ffmpeg.ts";
import { MAX_CLIP_SAMPLES, SAMPLE_RATE } from "../media/mel.ts";
import { sniff } from "../media/sniff.ts";
import { readSound, soundFormat } from "../media/sound.ts";
import { readHead, regularPath } from "../media/source.ts";
import { describeFlags, parseFlags } from "./args.ts";
import { generationFlags, generationOptions, loadFlags, loadModel } from "./options.ts";
import { ProgressBar } from "./progress.ts";
import { harmless, style, write } from "./terminal.ts";
import { type Cue, cuesOf, plainText, planChunks, srt, vtt } from "./transcript.ts";

const flags = {
  ...loadFlags,
  ...generationFlags,
  prompt: {
    type: "string",
    value: "TEXT",
    help: 'what the model is asked (default: "Transcribe the audio.")',
  },
  chunk: { type: "number", value: "SECONDS", help: "length of a chunk, up to 30 (default: 30)" },
  overlap: {
    type: "number",
    value: "SECONDS",
    help: "what two chunks have in common (default: 2, at most half a chunk)",
  },
  format: {
    type: "string",
    choices: ["text", "srt", "vtt"],
    help: "text, or subtitles with a cue for each chunk (default: text)",
  },
  json: {
    type: "boolean",
    help: "one JSON object a line for each recording: source, seconds, text, cues, warnings",
  },
} as const;

/** Chunks that are heard at once: their replies share the reading of the weights. */
const TOGETHER = 8;

/** Samples of a chunk at least: of less a model hears nothing. */
const LEAST_SAMPLES = SAMPLE_RATE / 10;

/** Help text of the command. */
export const help =
  `markbase transcribe AUDIO…\n\nWrites down recordings: WAV, MP3, FLAC, Ogg; videos and others where there is an ffmpeg. Long ones are\nheard in overlapping chunks.\n\n${
    describeFlags(flags)
  }`;

/** Runs the command with the words after its name. */
export async function transcribe(args: string[], signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, flags);
  if (words.length === 0) {
    throw new InvalidArgument("Name at least one recording, as in transcribe talk.mp3.");
  }
  if (values.json && values.format !== undefined) {
    throw new InvalidArgument("--json and --format exclude each other: the cues of --json hold the same.");
  }
  if (values.format !== undefined && values.format !== "text" && words.length > 1) {
    throw new InvalidArgument(`Subtitles are of one recording; ${words.length} were named.`);
  }
  for (const source of words) await checkSound(source, signal);
  const chunk = seconds("chunk", values.chunk ?? 30, 1, MAX_CLIP_SAMPLES / SAMPLE_RATE);
  const overlap = seconds("overlap", values.overlap ?? Math.min(2, chunk / 2), 0, chunk / 2);
  const prompt = values.prompt ?? "Transcribe the audio.";
  const options = { temperature: 0, ...generationOptions(values), signal };
  using bar = new ProgressBar();
  await using model = await loadModel(values, bar, signal);
  for (const source of words) {
    const heard = await listen(model, source, { chunk, overlap, prompt }, options, (completed, total) => {
      bar.update({ stage: "transcribe", completed, total });
    });
    bar.stop();
    const { cues } = heard;
    for (const warning of heard.warnings) {
      if (!values.json) {
        await write(Deno.stderr, style(`warning: ${warning.message}\n`, "yellow", Deno.stderr));
      }
    }
    if (values.json) {
      await write(Deno.stdout, JSON.stringify({ source, ...heard, text: plainText(cues) }) + "\n");
    } else if (values.format === "srt") await write(Deno.stdout, harmless(srt(cues)));
    else if (values.format === "vtt") await write(Deno.stdout, harmless(vtt(cues)));
    else {
      const name = words.length > 1 ? `${style(source, "bold")}: ` : "";
      await write(Deno.stdout, `${name}${harmless(plainText(cues))}\n`);
    }
  }
}

/** Refuses a file that holds no sound before a model is loaded for it; what is not at hand is fetched later. */
async function checkSound(source: string, signal: AbortSignal): Promise<void> {
  const path = await regularPath(source);
  if (path !== undefined) await checkFfmpeg(soundFormat(sniff(await readHead(path, signal))));
}

/** Hears a recording chunk by chunk. */
async function listen(
  model: Model,
  source: string,
  { chunk, overlap, prompt }: { chunk: number; overlap: number; prompt: string },
  options: Parameters<Model["chat"]>[1] & { signal: AbortSignal },
  onProgress: (completed: number, total: number) => void,
): Promise<{ seconds: number; cues: Cue[]; warnings: Warning[] }> {
  const { samples, warnings } = await readSound(source, options.signal);
  const chunks = planChunks(
    samples.length,
    Math.round(chunk * SAMPLE_RATE),
    Math.round(overlap * SAMPLE_RATE),
    LEAST_SAMPLES,
  );
  const texts: string[] = [];
  const all = [...warnings];
  for (let at = 0; at < chunks.length; at += TOGETHER) {
    onProgress(at, chunks.length);
    const requests = chunks.slice(at, at + TOGETHER).map(({ start, end }): Message[] => {
      const audio = { data: samples.subarray(start, end), sampleRate: SAMPLE_RATE };
      return [{ role: "user", content: [{ type: "audio", audio }, { type: "text", text: prompt }] }];
    });
    for (const reply of await model.batch(requests, options)) {
      if (reply.error) throw reply.error;
      texts.push(reply.text);
      for (const warning of reply.warnings) {
        if (!all.some(({ message }) => message === warning.message)) all.push(warning);
      }
    }
  }
  const cues = cuesOf(chunks, texts, SAMPLE_RATE);
  return { seconds: samples.length / SAMPLE_RATE, cues, warnings: all };
}

function seconds(name: string, value: number, least: number, most: number): number {
  if (value >= least && value <= most) return value;
  throw new InvalidArgument(`--${name} is ${value}; it takes ${least} to ${most} seconds.`);
}
