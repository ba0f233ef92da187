/** Media of one model: prepared, put into prompts in place of their placeholders, and turned into soft tokens. */
import type { ContentPart, Message } from "../chat/messages.ts";
import type { ModelConfig } from "../checkpoint/config.ts";
import { readText } from "../checkpoint/files.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import { describe } from "../arguments.ts";
import { CheckpointError, InvalidArgument, MarkbaseError, TokenizerError } from "../errors.ts";
import type { AudioInput, ImageInput } from "../media/inputs.ts";
import type { MediaSpan, PreparedMedia, PrepareOptions } from "../media/prepare.ts";
import { IMAGE_TOKENS, type MediaSettings, mediaSettings } from "../media/settings.ts";
import { timestamp } from "../media/spans.ts";
import type { AudioFeatures, AudioFrames, ImagePatches, SoftTokens } from "../media/types.ts";
import type { Segment, Tokenizer } from "../tokenizer/tokenizer.ts";
import type { PromptOptions, Usage } from "./api.ts";
import type { PlacedMedia } from "./placed.ts";
import { SharedRuns } from "../shared_runs.ts";

/** A span and where its soft tokens begin in a timeline. */
export interface SpanAt {
  /** position of the first */ start: number;
  span: MediaSpan;
}

/** What turns spans into soft tokens. */
interface Embedder {
  embedImage(image: ImagePatches, options?: { signal?: AbortSignal }): Promise<SoftTokens>;
  embedAudio(audio: AudioFeatures | AudioFrames, options?: { signal?: AbortSignal }): Promise<SoftTokens>;
}

/** Most bytes of soft tokens that are kept: some forty pictures of E2B, or ten of the largest model. */
const MOST_KEPT_BYTES = 64 * 2 ** 20;
/** Part of a model's memory that they may take beside what is planned. */
const KEPT_SHARE = 1 / 64;

/** See the head of this file. */
export class ModelMedia {
  readonly #config: ModelConfig;
  readonly #processor: unknown;
  #read: MediaSettings | undefined;
  readonly #towers: Embedder;
  /** Bytes of soft tokens that are kept for prompts that hold a picture again; tests set it. */
  keptBytes: number;
  /** soft tokens by key, the least recently used first */
  readonly #kept = new Map<string, SoftTokens>();
  readonly #underWay = new SharedRuns<SoftTokens>();

  /** `processor`: the JSON of `processor_config.json`, or null. `memory`: bytes that the model may take. */
  constructor(config: ModelConfig, processor: unknown, towers: Embedder, memory: number) {
    this.keptBytes = Math.min(MOST_KEPT_BYTES, Math.floor(memory * KEPT_SHARE));
    this.#config = config;
    this.#processor = processor;
    this.#towers = towers;
  }

  /** Throws `MarkbaseError` (`no_vision`, `no_audio`) if messages hold media that the model does not take. */
  checkMessages(messages: readonly Message[]): void {
    if (!Array.isArray(messages)) return; // refused later
    for (const message of messages) {
      if (!Array.isArray(message?.content)) continue;
      for (const part of message.content) if (part?.type !== "text") this.#checkKind(part?.type);
    }
  }

  /** Prepares parts in order. Rejects with `MediaError`, `InvalidArgument`, `MissingPermission` or the signal's reason. */
  async prepare(parts: readonly ContentPart[], options: PrepareOptions): Promise<PreparedMedia[]> {
    if (!Array.isArray(parts)) {
      throw new InvalidArgument('Media are a list of parts, such as [{type: "image", image: "photo.jpg"}].');
    }
    checkImageTokens(options);
    const prepared: PreparedMedia[] = [];
    for (const part of parts) prepared.push(await this.#prepare(part, options));
    return prepared;
  }

  /** Rows of a picture, as `Model.embedImage`. */
  async embedImage(image: ImageInput, options: PrepareOptions): Promise<Float32Array> {
    checkImageTokens(options);
    const { spans } = await this.#prepare({ type: "image", image }, options);
    return (await this.#softTokens(spans[0], options.signal)).values.slice();
  }

  /** Rows of a sound, as `Model.embedAudio`. */
  async embedAudio(audio: AudioInput, options: PrepareOptions): Promise<Float32Array> {
    checkImageTokens(options);
    const { spans } = await this.#prepare({ type: "audio", audio }, options);
    return (await this.#softTokens(spans[0], options.signal)).values.slice();
  }

  /**
   * Token ids of a rendered conversation: each placeholder becomes begin, one placeholder a soft token, end; frames of a video
   * have their times before them.
   */
  expand(
    segments: readonly Segment[],
    media: readonly PreparedMedia[],
    tokenizer: Tokenizer,
  ): { ids: number[]; spans: SpanAt[] } {
    const { image, audio, video } = this.#config.tokens;
    const ids: number[] = [], spans: SpanAt[] = [];
    let pending: Segment[] = [];
    const flush = () => {
      for (const id of tokenizer.encodeSegments(pending)) ids.push(id);
      pending = [];
    };
    let next = 0;
    for (const segment of segments) {
      const control = "control" in segment ? segment.control : undefined;
      if (typeof control !== "number" || ![image, audio, video].includes(control)) {
        pending.push(segment);
        continue;
      }
      for (const [i, span] of media[next++].spans.entries()) {
        const { placeholder, begin, end } = this.#tokensOf(span);
        if (span.kind === "video") pending.push({ text: `${i > 0 ? " " : ""}${timestamp(span.time)} ` });
        if (begin !== null) pending.push({ control: begin });
        flush();
        spans.push({ start: ids.length, span });
        for (let n = 0; n < span.tokens; n++) ids.push(placeholder);
        if (end !== null) pending.push({ control: end });
      }
    }
    flush();
    return { ids, spans };
  }

  /**
   * Media at the runs of placeholders that `ids` have, in their order. Throws `InvalidArgument` where kinds or numbers of soft tokens
   * do not agree. `offset`: position of the first id.
   */
  atRuns(ids: readonly number[], media: readonly PreparedMedia[], offset = 0): SpanAt[] {
    const runs = this.#runs(ids);
    const spans = media.flatMap((medium) => medium.spans);
    for (let i = 0; i < Math.max(runs.length, spans.length); i++) {
      const run = runs[i], span = spans[i];
      if (run === undefined) {
        throw new InvalidArgument(
          `The ids have ${runs.length} runs of media placeholders but ${spans.length} pictures, frames and sounds were given.`,
        );
      }
      if (span === undefined) {
        throw new InvalidArgument(
          `Position ${
            offset + run.start
          } begins a run of ${run.length} ${run.kind} placeholders that no medium was given ` +
            `for. Pass it in the option media.`,
        );
      }
      if (span.kind !== run.kind || span.tokens !== run.length) {
        throw new InvalidArgument(
          `Position ${
            offset + run.start
          } begins a run of ${run.length} ${run.kind} placeholders, but medium ${i} is ` +
            `${span.kind} of ${span.tokens} soft tokens. Put as many placeholders, or set imageTokens.`,
        );
      }
    }
    return spans.map((span, i) => ({ start: offset + runs[i].start, span }));
  }

  /** Media of a prompt of token ids at their places. Rejects as `prepare` and `atRuns`. */
  async placeAtRuns(
    ids: readonly number[],
    { media = [], imageTokens }: PromptOptions,
    signal: AbortSignal | undefined,
  ): Promise<PlacedMedia[]> {
    const prepared = await this.prepare(media, { imageTokens, signal });
    return this.place(this.atRuns(ids, prepared));
  }

  /** Spans at their places; their soft tokens come from the towers or from an earlier call when they are needed. */
  place(spans: readonly SpanAt[]): PlacedMedia[] {
    return spans.map(({ start, span }) => ({
      start,
      tokens: span.tokens,
      key: span.key,
      block: span.kind !== "audio",
      embed: (signal) => this.#softTokens(span, signal),
    }));
  }

  /** How the checkpoint wants its media, read when the first one comes: text goes without. */
  get #settings(): MediaSettings {
    return this.#read ??= mediaSettings(this.#config, this.#processor);
  }

  /** Soft tokens of a span: kept ones, those of a run under way for another call, or of one of its own. */
  async #softTokens(span: MediaSpan, signal: AbortSignal | undefined): Promise<SoftTokens> {
    const kept = this.#kept.get(span.key);
    const soft = kept ??
      await this.#underWay.share(span.key, signal, (signal) => this.#runTower(span, signal));
    this.#keep(span.key, soft);
    return soft;
  }

  async #runTower(span: MediaSpan, signal: AbortSignal): Promise<SoftTokens> {
    const soft = span.kind === "audio"
      ? await this.#towers.embedAudio(span.input, { signal })
      : await this.#towers.embedImage(span.input, { signal });
    if (soft.tokens === span.tokens) return soft;
    throw new MarkbaseError(
      "internal",
      `The tower gave ${soft.tokens} soft tokens where ${span.tokens} were expected. Please report this.`,
    );
  }

  /** Makes soft tokens the most recently used, and drops the least recently used ones beyond `keptBytes`. */
  #keep(key: string, soft: SoftTokens): void {
    this.#kept.delete(key);
    this.#kept.set(key, soft);
    let bytes = 0;
    for (const { values } of this.#kept.values()) bytes += values.byteLength;
    for (const [key, { values }] of this.#kept) {
      if (bytes <= this.keptBytes) break;
      this.#kept.delete(key);
      bytes -= values.byteLength;
    }
  }

  async #prepare(part: ContentPart, options: PrepareOptions): Promise<PreparedMedia> {
    const type = part?.type;
    this.#checkKind(type);
    const { vision, audio } = this.#settings;
    // Readers of pictures, sounds and videos are loaded when there is one.
    const { prepareAudio, prepareImage, prepareVideo } = await import("../media/prepare.ts");
    switch (type) {
      case "image":
        return await prepareImage(part.image as ImageInput, vision!, options);
      case "audio":
        return await prepareAudio(part.audio as AudioInput, audio!, options);
      case "video":
        return await prepareVideo(part.video as never, { vision: vision!, audio }, options);
      default:
        throw new InvalidArgument(`A medium has the type "${type}". Use one of image, audio, video.`);
    }
  }

  #checkKind(type: unknown): void {
    const { tokens } = this.#config;
    const sees = this.#config.vision !== null, hears = this.#config.audio !== null;
    if ((type === "image" || type === "video") && (!sees || tokens[type] === null)) {
      throw new MarkbaseError(
        "no_vision",
        `This model cannot see ${type}s. Use one that has a vision tower.`,
      );
    }
    if (type === "audio" && (!hears || tokens.audio === null)) {
      throw new MarkbaseError("no_audio", "This model cannot hear sounds. Use one that has an audio tower.");
    }
  }

  #tokensOf({ kind }: MediaSpan): { placeholder: number; begin: number | null; end: number | null } {
    const { tokens } = this.#config;
    const placeholder = tokens[kind];
    if (placeholder === null) {
      throw new TokenizerError("placeholder_missing", `config.json names no ${kind}_token_id. Add it.`);
    }
    return kind === "audio"
      ? { placeholder, begin: tokens.beginAudio, end: tokens.endAudio }
      : { placeholder, begin: tokens.beginImage, end: tokens.endImage };
  }

  /** Maximal runs of one placeholder. */
  #runs(ids: readonly number[]): { kind: MediaSpan["kind"]; start: number; length: number }[] {
    const { image, audio, video } = this.#config.tokens;
    const kinds = new Map<number, MediaSpan["kind"]>();
    const { vision, audio: hearing } = this.#config;
    if (vision !== null && image !== null) kinds.set(image, "image");
    if (vision !== null && video !== null) kinds.set(video, "video");
    if (hearing !== null && audio !== null) kinds.set(audio, "audio");
    const runs: { kind: MediaSpan["kind"]; start: number; length: number }[] = [];
    if (kinds.size === 0) return runs;
    for (let i = 0; i < ids.length; i++) {
      const kind = kinds.get(ids[i]);
      if (kind === undefined) continue;
      if (i > 0 && ids[i - 1] === ids[i]) runs[runs.length - 1].length++;
      else runs.push({ kind, start: i, length: 1 });
    }
    return runs;
  }
}

/** Soft tokens of a prompt by kind, where there are any. */
export function countSoftTokens(spans: readonly SpanAt[]): Pick<Usage, "imageTokens" | "audioTokens"> {
  let image = 0, audio = 0;
  for (const { span } of spans) {
    if (span.kind === "audio") audio += span.tokens;
    else image += span.tokens;
  }
  return { ...(image > 0 ? { imageTokens: image } : {}), ...(audio > 0 ? { audioTokens: audio } : {}) };
}

/** Throws `InvalidArgument` for a budget that is none, whether there are pictures or not. */
export function checkImageTokens({ imageTokens }: PrepareOptions): void {
  if (imageTokens === undefined || IMAGE_TOKENS.includes(imageTokens)) return;
  throw new InvalidArgument(
    `imageTokens is ${describe(imageTokens)}; it must be one of ${IMAGE_TOKENS.join(", ")}.`,
  );
}

/** The JSON of `processor_config.json`; null where the checkpoint has none. Rejects with `CheckpointError`. */
export async function readProcessor(checkpoint: Pick<Checkpoint, "folder" | "metadata">): Promise<unknown> {
  const text = checkpoint.metadata === null
    ? await readText(checkpoint.folder, "processor_config.json", true)
    : null;
  if (text === null) return null;
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new CheckpointError("invalid_config", "processor_config.json is not JSON. Download it again.", {
      cause,
    });
  }
}
