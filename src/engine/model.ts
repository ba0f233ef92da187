/** A loaded model: the public calls, each on a timeline of its own. */
import type { KvFormat } from "../schedule/groups.ts";
import type { Device } from "../../ffi/device.ts";
import { checkNames, describe, flag, integer, signalOf } from "../arguments.ts";
import type { Message } from "../chat/messages.ts";
import type { ChatTemplate, RenderedChat } from "../chat/template.ts";
import type { ModelConfig } from "../checkpoint/config.ts";
import type { TextWeights } from "../checkpoint/weights.ts";
import { ContextFull, Disposed, InvalidArgument, TemplateError, TokenizerError } from "../errors.ts";
import { EXPLAIN_OPTIONS, type ExplainOptions, explainPlan, type Explanation } from "../schedule/explain.ts";
import { machineNamed } from "../schedule/machines.ts";
import { OUTPUT } from "../schedule/text.ts";
import type { Tokenizer } from "../tokenizer/tokenizer.ts";
import type { AudioInput, ImageInput } from "../media/inputs.ts";
import type { Warning } from "../warning.ts";
import type {
  BatchRequest,
  ChatOptions,
  CompleteOptions,
  EmbedOptions,
  GenerateOptions,
  MemoryReport,
  Model,
  PromptOptions,
  Receipt,
  RenderChatOptions,
  Reply,
  Session,
  StreamPart,
} from "./api.ts";
import { answerAll } from "./batch.ts";
import type { Draw } from "./draw.ts";
import type { Drafter } from "./drafter.ts";
import type { Forward } from "./forward.ts";
import { drawTokens, type GenerationContext, type GenerationFacts, type Timeline } from "./generation.ts";
import {
  CHAT_OPTIONS,
  COMPLETE_OPTIONS,
  GENERATE_OPTIONS,
  PROMPT_OPTIONS,
  RENDER_OPTIONS,
  type Settings,
  settingsOf,
  tokenIds,
} from "./options.ts";
import { LOGITS_OUTPUT } from "./results.ts";
import { chatReader, collect, replyParts, textReader } from "./reply.ts";
import { TimelineSession } from "./session.ts";
import { StopText } from "./stop_text.ts";
import { countSoftTokens, type ModelMedia, type SpanAt } from "./media.ts";
import { checkPlaced, type PlacedMedia, timelineKeys } from "./placed.ts";
import type { Towers } from "./towers.ts";
import { readInPlace, type WeightLayout } from "./weights.ts";

/** What a model is made of; it owns device and forward. */
export interface ModelParts {
  config: ModelConfig;
  weights: TextWeights;
  device: Device;
  forward: Forward;
  tokenizer: Tokenizer | undefined;
  template: ChatTemplate | undefined;
  /** why there is no tokenizer although the checkpoint has one */ textError: TokenizerError | undefined;
  /** for messages */ source: string;
  contextLength: number;
  precision: "exact" | "fast";
  matrixUnits: boolean;
  kvFormat: KvFormat;
  stops: ReadonlySet<number>;
  warnings: Warning[];
  /** see `weightsFingerprint` */ fingerprint: string;
  /** of its weights, and of the drafter's */ layouts: readonly WeightLayout[];
  /** bytes of the arenas */ arenaBytes: number;
  /** the drafter network, which the forward owns */ drafter: Drafter | undefined;
  /** its eyes and ears */ towers: Towers;
  /** what it sees and hears, in prompts */ media: ModelMedia;
}

/** The `Model` of `api.ts`. */
export class LoadedModel implements Model {
  readonly #parts: ModelParts;
  #disposed = false;
  /** those that were not disposed; weakly, so that a dropped one can give its pages back */
  readonly #sessions = new Set<WeakRef<TimelineSession>>();

  constructor(parts: ModelParts) {
    this.#parts = parts;
  }

  get config(): ModelConfig {
    return this.#parts.config;
  }

  get contextLength(): number {
    return this.#parts.contextLength;
  }

  get warnings(): readonly Warning[] {
    return [...this.#parts.warnings, ...this.#parts.forward.warnings];
  }

  get tokenizer(): Tokenizer {
    const { tokenizer, source, textError } = this.#parts;
    if (tokenizer) return tokenizer;
    throw textError ?? new TokenizerError(
      "tokenizer_missing",
      `${source} has no tokenizer.json and no vocabulary of its own, so it takes and gives token ids only. ` +
        `Add the file for text.`,
    );
  }

  renderChat(messages: readonly Message[], options: RenderChatOptions = {}): string {
    checkNames(options, RENDER_OPTIONS);
    return this.render(messages, options).text;
  }

  async logits(
    ids: ArrayLike<number>,
    options: PromptOptions & { last?: number; signal?: AbortSignal } = {},
  ): Promise<Float32Array> {
    checkNames(options, ["last", "signal", ...PROMPT_OPTIONS]);
    const signal = signalOf(options.signal);
    const prompt = this.#prompt(ids);
    const last = integer("last", options.last, 1, prompt.length) ?? 1;
    const V = this.config.vocabularySize;
    const media = await this.media.placeAtRuns(prompt, options, signal);
    const logits = new Float32Array(last * V);
    let at = 0;
    const { forward } = this.#parts;
    await this.#onSequence(async (sequence) => {
      sequence.reserve(prompt.length, forward.chunkRows);
      await forward.prefill(
        sequence,
        prompt,
        { outputs: last, mask: LOGITS_OUTPUT, media, signal },
        (results) => {
          const rows = results.all(OUTPUT.logits);
          logits.set(rows, at);
          at += rows.length;
        },
      );
    });
    return logits;
  }

  async hidden(ids: ArrayLike<number>, options: { signal?: AbortSignal } = {}): Promise<Float32Array[]> {
    checkNames(options, ["signal"]);
    const signal = signalOf(options.signal);
    const prompt = this.#prompt(ids);
    await this.media.placeAtRuns(prompt, {}, signal); // refuses placeholders
    const last = prompt.pop()!;
    const { forward } = this.#parts;
    return await this.#onSequence(async (sequence) => {
      sequence.reserve(prompt.length + 1, forward.chunkRows);
      await forward.prefill(sequence, prompt, { outputs: 0, mask: 0, signal }, () => {});
      return await forward.trace(sequence, last, signal, (results) => results.states());
    });
  }

  async *generate(
    ids: ArrayLike<number>,
    options: GenerateOptions & PromptOptions = {},
  ): AsyncGenerator<number, void, undefined> {
    checkNames(options, [...GENERATE_OPTIONS, ...PROMPT_OPTIONS]);
    const settings = this.settings(options);
    const prompt = this.#prompt(ids);
    const media = await this.media.placeAtRuns(prompt, options, settings.signal);
    yield* this.idsOf(this.#timeline(prompt, media), settings, true);
  }

  async embedImage(image: ImageInput, options: EmbedOptions = {}): Promise<Float32Array> {
    this.check();
    checkNames(options, ["imageTokens", "signal"]);
    return await this.media.embedImage(image, { ...options, signal: signalOf(options.signal) });
  }

  async embedAudio(audio: AudioInput, options: EmbedOptions = {}): Promise<Float32Array> {
    this.check();
    checkNames(options, ["imageTokens", "signal"]);
    return await this.media.embedAudio(audio, { ...options, signal: signalOf(options.signal) });
  }

  async chat(messages: readonly Message[], options: ChatOptions = {}): Promise<Reply> {
    return await collect(this.stream(messages, options));
  }

  async *stream(
    messages: readonly Message[],
    options: ChatOptions = {},
  ): AsyncGenerator<StreamPart, void, undefined> {
    checkNames(options, CHAT_OPTIONS);
    const settings = this.settings(options);
    const rendered = this.render(messages, options);
    const { imageTokens } = options;
    const prepared = await this.media.prepare(rendered.media, { imageTokens, signal: settings.signal });
    const { ids, spans } = this.media.expand(rendered.segments, prepared, this.tokenizer);
    const warnings = [...rendered.warnings, ...prepared.flatMap((medium) => medium.warnings)];
    yield* this.#replyTo(ids, settings, chatReader(this.tokenizer, ids), warnings, spans);
  }

  async complete(text: string, options: CompleteOptions = {}): Promise<Reply> {
    checkNames(options, COMPLETE_OPTIONS);
    if (typeof text !== "string") {
      throw new InvalidArgument(`The text to continue is ${describe(text)}; pass a string.`);
    }
    const settings = this.settings(options);
    const { tokenizer } = this;
    const begin = tokenizer.bos === undefined || this.config.tokens.bos === null ? [] : [tokenizer.bos];
    const prompt = [...begin, ...tokenizer.encode(text)];
    return await collect(this.#replyTo(prompt, settings, textReader(tokenizer), []));
  }

  async batch(requests: readonly BatchRequest[], options: ChatOptions = {}): Promise<Reply[]> {
    this.check();
    checkNames(options, CHAT_OPTIONS);
    return await answerAll(this, requests, options, this.#receipt(options.seed ?? 0, []));
  }

  session(): Session {
    return this.fork(undefined);
  }

  explain(options: ExplainOptions = {}): Explanation {
    this.check();
    checkNames(options, EXPLAIN_OPTIONS);
    const { config, weights, device, kvFormat, precision, matrixUnits } = this.#parts;
    const machine = machineNamed(device.info().name) ?? device.kind;
    const loaded = { device: machine, matrixUnits: matrixUnits && precision === "fast" };
    return explainPlan(config, { ...loaded, ...options }, weights, kvFormat);
  }

  memory(): MemoryReport {
    this.check();
    const { forward, device, towers, layouts, arenaBytes } = this.#parts;
    const { repacked, replaced, scratch, peak } = device.memory();
    const { capacity, used } = forward.kvBytes;
    const sum = (bytesOf: (layout: WeightLayout) => number) =>
      layouts.reduce((total, layout) => total + bytesOf(layout), 0);
    return {
      weights: sum(({ weightBytes }) => weightBytes),
      mapped: sum((layout) => readInPlace(layout, device.kind)) - replaced,
      copied: sum(({ copiedBytes }) => copiedBytes),
      repacked,
      kv: capacity,
      kvUsed: used,
      activations: arenaBytes + towers.activationBytes + scratch,
      peak,
    };
  }

  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    for (const session of this.#sessions) session.deref()?.[Symbol.dispose]();
    this.#parts.towers[Symbol.dispose]();
    this.#parts.forward.close();
    this.#parts.device[Symbol.dispose]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this[Symbol.dispose]();
    await this.#parts.towers[Symbol.asyncDispose]();
    await this.#parts.forward[Symbol.asyncDispose]();
    await this.#parts.device[Symbol.asyncDispose]();
  }

  // What follows is for sessions.

  /** Throws `Disposed` after the model was disposed. */
  check(): void {
    if (this.#disposed) throw new Disposed("A model");
  }

  /** A new session, empty or with the timeline of another. */
  fork(from: TimelineSession | undefined): Session {
    this.check();
    for (const session of this.#sessions) if (!session.deref()) this.#sessions.delete(session);
    const session = new TimelineSession(this, () => this.#sessions.delete(listed), from);
    const listed = new WeakRef(session);
    this.#sessions.add(listed);
    return session;
  }

  /** The parts that a session works with. */
  get engine(): Pick<
    ModelParts,
    "forward" | "towers" | "media" | "weights" | "fingerprint" | "precision" | "kvFormat" | "contextLength"
  > {
    return this.#parts;
  }

  /** Checked options. */
  settings(options: GenerateOptions): Settings {
    this.check();
    const settings = settingsOf(options, this.config);
    if (settings.stop.length > 0) void this.tokenizer; // stop texts need one
    return settings;
  }

  /** Pictures and sounds of prompts. */
  get media(): ModelMedia {
    return this.#parts.media;
  }

  /** A rendered conversation. Throws `MarkbaseError` for media that the model does not take. */
  render(messages: readonly Message[], options: RenderChatOptions): RenderedChat {
    this.check();
    this.media.checkMessages(messages);
    const { template, source } = this.#parts;
    void this.tokenizer;
    if (template === undefined) {
      throw new TemplateError(
        "template_missing",
        `${source} has no chat template: neither chat_template.jinja in its folder nor, in a GGUF file, tokenizer.chat_template. ` +
          `Take a copy with one (an instruction-tuned model has it), or use complete(), generate --raw on the command line, with ` +
          `a prompt of your own.`,
      );
    }
    const { tools } = options;
    const thinking = flag("thinking", options.thinking);
    const addGenerationPrompt = flag("addGenerationPrompt", options.addGenerationPrompt);
    const rendered = template.render(messages, { tools, thinking, addGenerationPrompt });
    if (rendered.text !== "") return rendered;
    throw new TemplateError(
      "template_failed",
      `The chat template of ${source} makes nothing of the messages. Correct it.`,
    );
  }

  /** Draws ids from a timeline; the timeline is given back (`owned`) or kept at the end. */
  async *idsOf(
    timeline: Timeline,
    settings: Settings,
    owned: boolean,
  ): AsyncGenerator<number, void, undefined> {
    const stop = settings.stop.length > 0 ? new StopText(settings.stop) : undefined;
    const text = stop && this.tokenizer.stream();
    for await (const draw of this.#draws(timeline, settings, owned)) {
      yield draw.id;
      if (draw.refusal) throw draw.refusal;
      if (stop && text && stop.push(text.push(draw.id)).stopped) return;
    }
  }

  async *#replyTo(
    prompt: number[],
    settings: Settings,
    reader: ReturnType<typeof chatReader>,
    warnings: readonly Warning[],
    spans: readonly SpanAt[] = [],
  ): AsyncGenerator<StreamPart, void, undefined> {
    const { contextLength } = this.#parts;
    if (prompt.length >= contextLength) throw new ContextFull(prompt.length + 1, contextLength);
    const timeline = this.#timeline(prompt, this.media.place(spans));
    const generation: GenerationFacts = { cachedTokens: 0 };
    const draws = this.#draws(timeline, settings, true, generation);
    yield* replyParts(draws, reader, settings.stop, {
      promptTokens: prompt.length,
      softTokens: countSoftTokens(spans),
      generation,
      warnings: [...this.warnings, ...warnings],
      receipt: {
        ...this.#receipt(settings.seed, prompt),
        ...(spans.length > 0 ? { media: spans.map(({ span }) => span.key) } : {}),
      },
      contextLength,
    });
  }

  #receipt(seed: number, promptIds: readonly number[]): Receipt {
    const { fingerprint, device, precision, kvFormat, matrixUnits } = this.#parts;
    return {
      weights: fingerprint,
      library: device.library.sha256,
      device: device.kind,
      precision,
      kvCache: kvFormat,
      matrixUnits,
      seed,
      promptIds: [...promptIds],
    };
  }

  async *#draws(
    timeline: Timeline,
    settings: Settings,
    owned: boolean,
    facts: GenerationFacts = { cachedTokens: 0 },
  ): AsyncGenerator<Draw, void, undefined> {
    const { forward, contextLength, config, stops, drafter } = this.#parts;
    const context: GenerationContext = {
      forward,
      contextLength,
      vocabularySize: config.vocabularySize,
      stops,
      hasDrafter: drafter !== undefined,
    };
    try {
      yield* drawTokens(timeline, settings, context, facts);
    } finally {
      const { ids, keys, sequence } = timeline;
      sequence.unreserve();
      if (!this.#disposed) forward.prefixes.keep(keys ?? ids, sequence, true);
      if (owned) sequence.dispose();
    }
  }

  /** A timeline of prompt tokens; it resumes from the prefix cache when it begins. */
  #timeline(ids: number[], media: readonly PlacedMedia[] = []): Timeline {
    const timeline: Timeline = { ids, sequence: this.#parts.forward.sequence(), drawn: false };
    if (media.length === 0) return timeline;
    checkPlaced(media, ids.length, this.config);
    return { ...timeline, media, keys: timelineKeys(ids, media) };
  }

  /** Checked prompt ids. */
  #prompt(ids: ArrayLike<number>): number[] {
    this.check();
    const { contextLength, config } = this.#parts;
    const prompt = tokenIds(ids, { vocabularySize: config.vocabularySize, contextLength });
    if (prompt.length === 0) throw new InvalidArgument("The prompt is empty. Pass at least one token id.");
    return prompt;
  }

  /** Runs `work` on a fresh sequence. */
  async #onSequence<T>(work: (sequence: Timeline["sequence"]) => Promise<T>): Promise<T> {
    const sequence = this.#parts.forward.sequence();
    try {
      return await work(sequence);
    } finally {
      sequence.dispose();
    }
  }
}
