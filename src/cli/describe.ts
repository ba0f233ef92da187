/** `markbase describe`: what a model sees in pictures and videos. */
import type { ContentPart, Model } from "../../mod.ts";
import { InvalidArgument } from "../errors.ts";
import { checkFfmpeg } from "../media/ffmpeg.ts";
import { isVideo } from "../media/kind.ts";
import { sniff } from "../media/sniff.ts";
import { readPicture } from "../media/picture.ts";
import { readHead, readSource, regularPath } from "../media/source.ts";
import { MAX_VIDEO_BYTES } from "../media/frames.ts";
import { describeFlags, parseFlags } from "./args.ts";
import { generationFlags, generationOptions, loadFlags, loadModel } from "./options.ts";
import { preview } from "./preview.ts";
import { ProgressBar } from "./progress.ts";
import { harmless, style, write } from "./terminal.ts";

const flags = {
  ...loadFlags,
  ...generationFlags,
  prompt: {
    type: "string",
    value: "TEXT",
    help: 'what the model is asked (default: "Describe the image." or "… the video.")',
  },
  "image-tokens": {
    type: "string",
    choices: ["70", "140", "280", "560", "1120"],
    help: "soft tokens of a picture at most (default: the model's)",
  },
  together: { type: "boolean", help: "one answer about all pictures instead of one for each" },
  "no-preview": { type: "boolean", help: "do not show the pictures in the terminal" },
  json: { type: "boolean", help: "one JSON object a line for each answer: sources, text, usage, warnings" },
} as const;

/** Help text of the command. */
export const help =
  `markbase describe IMAGE…|VIDEO…\n\nTells what pictures (PNG, JPEG, WebP, AVIF, HEIC, GIF) and videos (animated GIF, WebP; others where there is an\nffmpeg) show. Paths and URLs are taken.\n\n${
    describeFlags(flags)
  }`;

/** A file to look at. */
interface Looked {
  source: string;
  part: Exclude<ContentPart, { type: "text" }>;
}

/** Runs the command with the words after its name. */
export async function describe(args: string[], signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, flags);
  if (words.length === 0) throw new InvalidArgument("Name at least one picture, as in describe photo.jpg.");
  // Whatever cannot be read is known before a model is loaded.
  const looked: Looked[] = [];
  for (const source of words) looked.push({ source, part: await open(source, signal) });
  using bar = new ProgressBar();
  await using model = await loadModel(values, bar, signal);
  const imageTokens = values["image-tokens"];
  const options = {
    ...generationOptions(values),
    ...(imageTokens === undefined ? {} : { imageTokens: Number(imageTokens) }),
    signal,
  };
  for (const group of values.together ? [looked] : looked.map((one) => [one])) {
    if (!values.json && !values["no-preview"]) {
      for (const { part } of group) if (part.type === "image") await show(part.image, signal);
    }
    const title = looked.length > 1 && !values.together ? `${style(group[0].source, "bold")}: ` : "";
    await answer(model, group, values.prompt, options, { json: values.json ?? false, title });
  }
}

/** A path as it is, anything else as its bytes, so that it is fetched once. */
async function open(source: string, signal: AbortSignal): Promise<Looked["part"]> {
  const bytes = await regularPath(source) ?? await readSource(source, { limit: MAX_VIDEO_BYTES, signal });
  if (!await isVideo(bytes, signal)) return { type: "image", image: bytes };
  await checkFfmpeg(sniff(await readHead(bytes, signal)));
  return { type: "video", video: bytes };
}

async function show(image: Parameters<typeof readPicture>[0], signal: AbortSignal): Promise<void> {
  if (Deno.stdout.isTerminal()) await write(Deno.stdout, await preview(await readPicture(image, signal)));
}

async function answer(
  model: Model,
  group: readonly Looked[],
  prompt: string | undefined,
  options: Parameters<Model["stream"]>[1],
  { json, title }: { json: boolean; title: string },
): Promise<void> {
  const [{ part: { type } }] = group;
  const text = prompt ??
    (group.length > 1
      ? group.length === 2 ? "Describe both images." : "Describe the images."
      : `Describe the ${type}.`);
  const content: ContentPart[] = [...group.map(({ part }) => part), { type: "text", text }];
  const messages = [{ role: "user" as const, content }];
  if (json) {
    const { text, usage, warnings } = await model.chat(messages, options);
    const sources = group.map(({ source }) => source);
    await write(Deno.stdout, JSON.stringify({ sources, text, usage, warnings }) + "\n");
    return;
  }
  await write(Deno.stdout, title);
  for await (const piece of model.stream(messages, options)) {
    if (piece.type === "text") await write(Deno.stdout, harmless(piece.text));
    else if (piece.type === "done") {
      await write(Deno.stdout, "\n");
      for (const { message } of piece.reply.warnings) {
        await write(Deno.stderr, style(`warning: ${message}\n`, "yellow", Deno.stderr));
      }
    }
  }
}
