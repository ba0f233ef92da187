/** A session: one timeline of tokens, synced to what is appended and grown by what is generated. */
import { checkNames, signalOf } from "../arguments.ts";
import type { ContentPart, Message } from "../chat/messages.ts";
import { ContextFull, Disposed, InvalidArgument } from "../errors.ts";
import type { PreparedMedia } from "../media/prepare.ts";
import type { Warning } from "../warning.ts";
import type { AppendOptions, GenerateOptions, RenderChatOptions, Session } from "./api.ts";
import type { Timeline } from "./generation.ts";
import type { LoadedModel } from "./model.ts";
import { checkImageTokens, type SpanAt } from "./media.ts";
import { APPEND_OPTIONS, GENERATE_OPTIONS, tokenIds } from "./options.ts";
import { checkPlaced, timelineKeys } from "./placed.ts";
import { chatReader } from "./reply.ts";
import { readSpans, saveSpans } from "./saved_media.ts";
import { damaged, readSession, writeSession } from "./session_file.ts";

/** What a session holds beside its timeline. */
interface Conversation {
  /** tokens before the first message */ base: number;
  /** media parts without what they hold */ messages: Message[];
  /** media of the messages, in order */ media: PreparedMedia[];
  options: RenderChatOptions;
  /** tokens before the reply to the last message; what follows was generated */ replyStart: number;
}

/** A generation of a session. */
interface Generation {
  /** its tokens, once it has begun */ draws?: AsyncGenerator<number, void, undefined>;
}

/** Ends generations whose iterator nobody can reach any more and nobody ended. */
const dropped = new FinalizationRegistry<() => Promise<void>>((end) => {
  end().catch(() => {}); // nobody is there to be told
});

/** The `Session` of `api.ts`. */
export class TimelineSession implements Session {
  readonly #model: LoadedModel;
  readonly #onDispose: () => void;
  #timeline: Timeline;
  /** the media of the timeline */ #spans: readonly SpanAt[] = [];
  #warnings: Warning[] = [];
  #conversation: Conversation | undefined;
  /** what is under way, for messages */
  #busy: string | undefined;
  /** the one that is under way */ #generation: Generation | undefined;
  #disposed = false;

  constructor(model: LoadedModel, onDispose: () => void, from?: TimelineSession) {
    this.#model = model;
    this.#onDispose = onDispose;
    if (from === undefined) {
      this.#timeline = { ids: [], sequence: model.engine.forward.sequence(), drawn: false };
    } else {
      const { ids, keys, media, sequence, drawn } = from.#timeline;
      this.#timeline = {
        ids: [...ids],
        ...(media ? { keys: [...keys!], media } : {}),
        sequence: sequence.fork(),
        drawn,
      };
      this.#spans = from.#spans;
      this.#warnings = [...from.#warnings];
      const conversation = from.#conversation;
      if (conversation !== undefined) {
        const { media, ...rest } = conversation;
        this.#conversation = { ...structuredClone(rest), media };
      }
    }
  }

  get ids(): readonly number[] {
    return [...this.#timeline.ids];
  }

  get warnings(): readonly Warning[] {
    return [...this.#warnings];
  }

  async append(
    input: ArrayLike<number> | readonly Message[],
    options: AppendOptions = {},
  ): Promise<void> {
    this.#checkIdle();
    checkNames(options, APPEND_OPTIONS);
    checkImageTokens(options);
    const { media, imageTokens, signal: given, ...rendering } = options;
    const signal = signalOf(given);
    if (typeof input !== "object" || input === null || !(input.length > 0)) {
      throw new InvalidArgument("There is nothing to append. Pass token ids or messages, at least one.");
    }
    const prepare = (parts: Parameters<LoadedModel["media"]["prepare"]>[0]) =>
      this.#model.media.prepare(parts, { imageTokens, signal });
    if (typeof input[0] !== "object") {
      const [given] = Object.entries(rendering).find(([, value]) => value !== undefined) ?? [];
      if (given !== undefined) {
        throw new InvalidArgument(`The option ${given} goes with messages; token ids are taken as they are.`);
      }
      return await this.#appendIds(input as ArrayLike<number>, media ?? [], prepare);
    }
    if (media !== undefined) {
      throw new InvalidArgument("The option media goes with token ids; messages hold their media as parts.");
    }
    await this.#appendMessages(input as readonly Message[], rendering, prepare);
  }

  generate(options: GenerateOptions = {}): AsyncGenerator<number, void, undefined> {
    const generation: Generation = {};
    const iterator = this.#generate(options, generation);
    dropped.register(iterator, () => this.#end(generation), generation);
    return iterator;
  }

  async *#generate(
    options: GenerateOptions,
    generation: Generation,
  ): AsyncGenerator<number, void, undefined> {
    this.#checkIdle();
    checkNames(options, GENERATE_OPTIONS);
    const settings = this.#model.settings(options);
    generation.draws = this.#model.idsOf(this.#timeline, settings, false);
    this.#generation = generation;
    this.#busy = "A generation";
    try {
      for await (const id of generation.draws) {
        this.#checkOpen();
        yield id;
        this.#checkOpen(); // it may have been disposed meanwhile
      }
    } finally {
      dropped.unregister(generation);
      this.#free(generation);
    }
  }

  fork(): Session {
    this.#checkIdle();
    return this.#model.fork(this);
  }

  async save(path: string): Promise<void> {
    checkPath(path);
    await this.#exclusively("A save", async () => {
      const { ids, sequence, drawn } = this.#timeline;
      const { media, ...rest } = this.#conversation ?? {};
      // Of the media the messages say only what they are; all of them lie in the timeline.
      const counts = media?.map(({ kind, spans }) => ({ kind, spans: spans.length }));
      const conversation = this.#conversation ? { ...rest, media: counts } : null;
      const saved = this.#spans.length > 0 ? { media: saveSpans(this.#spans) } : {};
      await writeSession(path, this.#model.engine, sequence, { ids, drawn, conversation, ...saved });
    });
  }

  async restore(path: string): Promise<void> {
    checkPath(path);
    await this.#exclusively("A restore", async () => {
      const V = this.#model.config.vocabularySize;
      const { state, sequence } = await readSession(path, this.#model.engine, V);
      let spans: SpanAt[] | undefined;
      let placed: Pick<Timeline, "keys" | "media">;
      let conversation: Conversation | undefined;
      try {
        spans = await readSpans(state.media ?? [], state.ids, this.#model.config);
        if (spans === undefined) throw damaged(path, "its media do not fit the model");
        placed = this.#placed(state.ids, spans);
        conversation = withMedia(state.conversation, spans, state.ids.length, path);
      } catch (error) {
        sequence.dispose();
        throw error;
      }
      this.#timeline.sequence.dispose();
      this.#timeline = { ids: state.ids, ...placed, sequence, drawn: state.drawn };
      [this.#spans, this.#warnings, this.#conversation] = [spans, [], conversation];
    });
  }

  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    if (this.#generation !== undefined) this.#end(this.#generation).catch(() => {}); // its reader is told
    else if (this.#busy === undefined) this.#timeline.sequence.dispose();
    this.#onDispose();
  }

  // deno-lint-ignore require-await -- nothing of a session outlives its calls
  async [Symbol.asyncDispose](): Promise<void> {
    this[Symbol.dispose]();
  }

  async #appendIds(
    input: ArrayLike<number>,
    parts: readonly ContentPart[],
    prepare: Prepare,
  ): Promise<void> {
    const { ids } = this.#timeline;
    const { contextLength, config: { vocabularySize } } = this.#model;
    const added = tokenIds(input, { vocabularySize, contextLength, before: ids.length });
    const media = Array.isArray(parts) && parts.length === 0
      ? []
      : await this.#busyWith("An append", () => prepare(parts));
    const spans = this.#model.media.atRuns(added, media, ids.length);
    if (spans.length > 0) {
      const all = [...this.#spans, ...spans];
      const wanted = [...ids, ...added];
      Object.assign(this.#timeline, this.#placed(wanted, all));
      this.#spans = all;
      this.#warnings.push(...media.flatMap(({ warnings }) => warnings));
    } else for (const id of added) this.#timeline.keys?.push(id);
    for (const id of added) ids.push(id);
    this.#timeline.drawn = false;
    this.#conversation = undefined; // later messages begin a new conversation after these ids
  }

  /** Renders the whole conversation and goes back to where it differs from the timeline. */
  async #appendMessages(
    added: readonly Message[],
    options: RenderChatOptions,
    prepare: Prepare,
  ): Promise<void> {
    const { ids } = this.#timeline;
    const before = this.#conversation;
    const base = before?.base ?? ids.length;
    const earlier = [...(before?.messages ?? [])];
    if (before !== undefined && before.replyStart < ids.length && added[0]?.role !== "assistant") {
      earlier.push(this.#readReply(before.replyStart));
    }
    const effective = { ...before?.options, ...options };
    const rendered = this.#model.render([...earlier, ...added], effective);
    // Copies: what the caller does to its objects later must not change the past.
    const messages = [...earlier, ...structuredClone(added.map(withoutMedia))];
    const known = before?.media ?? [];
    const parts = rendered.media.slice(known.length);
    const fresh = parts.length === 0 ? [] : await this.#busyWith("An append", () => prepare(parts));
    const media = [...known, ...fresh];
    const expanded = this.#model.media.expand(rendered.segments, media, this.#model.tokenizer);
    const wanted = [...ids.slice(0, base), ...expanded.ids];
    const spans = [
      ...this.#spans.filter(({ start }) => start < base),
      ...expanded.spans.map(({ start, span }) => ({ start: start + base, span })),
    ];
    const { contextLength } = this.#model;
    if (wanted.length > contextLength) throw new ContextFull(wanted.length, contextLength);
    this.#goBack(wanted, this.#placed(wanted, spans));
    this.#spans = spans;
    this.#warnings.push(
      ...rendered.warnings.filter(({ message }) =>
        !this.#warnings.some((known) => known.message === message)
      ),
      ...fresh.flatMap(({ warnings }) => warnings),
    );
    const { addGenerationPrompt: _once, ...kept } = effective;
    this.#conversation = {
      base,
      messages,
      media,
      options: structuredClone(kept),
      replyStart: wanted.length,
    };
  }

  /** Makes `ids` with their media the timeline, as much of the cache as it shares with the present one kept. */
  #goBack(ids: number[], placed: Pick<Timeline, "keys" | "media">): void {
    const { forward } = this.#model.engine;
    let { sequence } = this.#timeline;
    const present = this.#timeline.keys ?? this.#timeline.ids, wanted = placed.keys ?? ids;
    let shared = 0;
    while (shared < present.length && shared < wanted.length && present[shared] === wanted[shared]) shared++;
    shared = forward.cut(placed.media)(Math.min(shared, wanted.length - 1));
    if (shared < sequence.length) {
      if (sequence.canTruncate(shared)) sequence.truncate(shared);
      else {
        sequence.dispose();
        sequence = forward.sequence(); // which resumes from the prefix cache
      }
    }
    this.#timeline = { ids, ...placed, sequence, drawn: false };
  }

  /** Spans as the timeline holds them; nothing for none. */
  #placed(ids: readonly number[], spans: readonly SpanAt[]): Pick<Timeline, "keys" | "media"> {
    if (spans.length === 0) return {};
    const media = this.#model.media.place(spans);
    checkPlaced(media, ids.length, this.#model.config);
    return { media, keys: timelineKeys(ids, media) };
  }

  /** The message that the tokens generated from `start` on make. */
  #readReply(start: number): Message {
    const { ids: all } = this.#timeline;
    const ids = all.slice(start);
    const reader = chatReader(this.#model.tokenizer, all.slice(0, start));
    const message: Message = { role: "assistant", content: "" };
    for (const event of [...ids.flatMap((id) => reader.push(id)), ...reader.finish()]) {
      if (event.type === "text") message.content += event.text;
      else if (event.type === "thinking") message.thinking = (message.thinking ?? "") + event.text;
      else if (event.type === "toolCall") message.toolCalls = [...(message.toolCalls ?? []), event.toolCall];
    }
    return message;
  }

  async #exclusively(what: string, work: () => Promise<void>): Promise<void> {
    this.#checkIdle();
    await this.#busyWith(what, work);
  }

  async #busyWith<T>(what: string, work: () => Promise<T>): Promise<T> {
    this.#busy = what;
    try {
      const result = await work();
      if (what !== "A save") this.#checkOpen(); // it may have been disposed meanwhile
      return result;
    } finally {
      this.#busy = undefined;
      if (this.#disposed) this.#timeline.sequence.dispose();
    }
  }

  /** Ends a generation that nobody goes on with; the timeline keeps the tokens that were given out. */
  async #end(generation: Generation): Promise<void> {
    try {
      await generation.draws?.return();
    } finally {
      this.#free(generation);
    }
  }

  /** The session is free again after a generation. */
  #free(generation: Generation): void {
    if (this.#generation !== generation) return;
    this.#generation = this.#busy = undefined;
    if (this.#disposed) this.#timeline.sequence.dispose();
  }

  #checkOpen(): void {
    if (this.#disposed) throw new Disposed("A session");
    this.#model.check();
  }

  #checkIdle(): void {
    this.#checkOpen();
    if (this.#busy === undefined) return;
    throw new InvalidArgument(
      `${this.#busy} of this session is under way. Await it, or end it with return(), first; a fork made before it goes on beside it.`,
    );
  }
}

type Prepare = (parts: readonly ContentPart[]) => Promise<PreparedMedia[]>;

/** A message whose media parts say only what they are: files may change, and what they held is kept by the timeline. */
function withoutMedia(message: Message): Message {
  if (!Array.isArray(message.content)) return message;
  const content = message.content.map((part) =>
    part.type === "text" ? part : { type: part.type } as ContentPart
  );
  return { ...message, content };
}

/** A saved conversation with the spans of its timeline, the last of which are its own. Throws `SessionError`. */
function withMedia(
  saved: unknown,
  spans: readonly SpanAt[],
  tokens: number,
  path: string,
): Conversation | undefined {
  if (saved === null || saved === undefined) return undefined;
  const { media: counts = [], ...rest } = saved as Omit<Conversation, "media"> & {
    media?: { kind: PreparedMedia["kind"]; spans: number }[];
  };
  const count = (value: unknown, most: number) =>
    Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) <= most;
  const valid = count(rest.replyStart, tokens) && count(rest.base, rest.replyStart) &&
    Array.isArray(rest.messages) &&
    typeof rest.options === "object" && rest.options !== null && Array.isArray(counts) &&
    counts.every((medium) => count(medium?.spans, spans.length));
  if (!valid) throw damaged(path, "its conversation is malformed");
  const own = spans.filter(({ start }) => start >= rest.base);
  if (counts.reduce((sum, medium) => sum + medium.spans, 0) !== own.length) {
    throw damaged(path, "its messages and their media do not agree");
  }
  let next = 0;
  const media = counts.map(({ kind, spans: count }) => ({
    kind,
    spans: own.slice(next, next += count).map(({ span }) => span),
    warnings: [],
  }));
  return { ...rest, media };
}

function checkPath(path: string): void {
  if (typeof path === "string" && path !== "") return;
  throw new InvalidArgument("A session is saved to and restored from a file; pass its path as a text.");
}
