/** A session: one timeline of tokens, synced to what is appended and grown by what is generated. */
import type { Message } from "../chat/messages.ts";
import { ContextFull, Disposed, InvalidArgument } from "../errors.ts";
import type { GenerateOptions, RenderChatOptions, Session } from "./api.ts";
import type { Timeline } from "./generation.ts";
import type { LoadedModel } from "./model.ts";
import { checkNames, GENERATE_OPTIONS, RENDER_OPTIONS, tokenIds } from "./options.ts";
import { chatReader } from "./reply.ts";
import { readSession, writeSession } from "./session_file.ts";

/** What a session holds beside its timeline. */
interface Conversation {
  /** tokens before the first message */ base: number;
  messages: Message[];
  options: RenderChatOptions;
  /** tokens before the reply to the last message; what follows was generated */ replyStart: number;
}

/** The `Session` of `api.ts`. */
export class TimelineSession implements Session {
  readonly #model: LoadedModel;
  readonly #onDispose: () => void;
  #timeline: Timeline;
  #conversation: Conversation | undefined;
  /** what is under way, for messages */
  #busy: string | undefined;
  #disposed = false;

  constructor(model: LoadedModel, onDispose: () => void, from?: TimelineSession) {
    this.#model = model;
    this.#onDispose = onDispose;
    if (from === undefined) {
      this.#timeline = { ids: [], sequence: model.engine.forward.sequence(), drawn: false };
    } else {
      const { ids, sequence, drawn } = from.#timeline;
      this.#timeline = { ids: [...ids], sequence: sequence.fork(), drawn };
      this.#conversation = structuredClone(from.#conversation);
    }
  }

  get ids(): readonly number[] {
    return [...this.#timeline.ids];
  }

  // deno-lint-ignore require-await -- errors must reject
  async append(
    input: ArrayLike<number> | readonly Message[],
    options: RenderChatOptions = {},
  ): Promise<void> {
    this.#checkIdle();
    checkNames(options, RENDER_OPTIONS);
    if (typeof input !== "object" || input === null || !(input.length > 0)) {
      throw new InvalidArgument("There is nothing to append. Pass token ids or messages, at least one.");
    }
    if (typeof input[0] === "object") this.#appendMessages(input as readonly Message[], options);
    else this.#appendIds(input as ArrayLike<number>);
  }

  async *generate(options: GenerateOptions = {}): AsyncGenerator<number, void, undefined> {
    this.#checkIdle();
    checkNames(options, GENERATE_OPTIONS);
    const settings = this.#model.settings(options);
    this.#busy = "A generation";
    try {
      for await (const id of this.#model.idsOf(this.#timeline, settings, false)) {
        this.#checkOpen();
        yield id;
        this.#checkOpen(); // it may have been disposed meanwhile
      }
    } finally {
      this.#busy = undefined;
      if (this.#disposed) this.#timeline.sequence.dispose();
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
      const conversation = this.#conversation ?? null;
      await writeSession(path, this.#model.engine, sequence, { ids, drawn, conversation });
    });
  }

  async restore(path: string): Promise<void> {
    checkPath(path);
    await this.#exclusively("A restore", async () => {
      const V = this.#model.config.vocabularySize;
      const { state, sequence } = await readSession(path, this.#model.engine, V);
      this.#timeline.sequence.dispose();
      this.#timeline = { ids: state.ids, sequence, drawn: state.drawn };
      this.#conversation = (state.conversation ?? undefined) as Conversation | undefined;
    });
  }

  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    if (this.#busy === undefined) this.#timeline.sequence.dispose();
    this.#onDispose();
  }

  // deno-lint-ignore require-await -- nothing of a session outlives its calls
  async [Symbol.asyncDispose](): Promise<void> {
    this[Symbol.dispose]();
  }

  #appendIds(input: ArrayLike<number>): void {
    const { ids } = this.#timeline;
    const { contextLength, config: { vocabularySize } } = this.#model;
    for (const id of tokenIds(input, { vocabularySize, contextLength, before: ids.length })) ids.push(id);
    this.#timeline.drawn = false;
    this.#conversation = undefined; // later messages begin a new conversation after these ids
  }

  /** Renders the whole conversation and goes back to where it differs from the timeline. */
  #appendMessages(added: readonly Message[], options: RenderChatOptions): void {
    const { ids } = this.#timeline;
    const before = this.#conversation;
    const base = before?.base ?? ids.length;
    const earlier = [...(before?.messages ?? [])];
    if (before !== undefined && before.replyStart < ids.length && added[0]?.role !== "assistant") {
      earlier.push(this.#readReply(ids.slice(before.replyStart)));
    }
    const effective = { ...before?.options, ...options };
    const rendered = this.#model.render([...earlier, ...added], effective);
    const wanted = [...ids.slice(0, base), ...this.#model.tokenizer.encodeSegments(rendered.segments)];
    const { contextLength } = this.#model;
    if (wanted.length > contextLength) throw new ContextFull(wanted.length, contextLength);
    let shared = 0;
    while (shared < ids.length && shared < wanted.length && ids[shared] === wanted[shared]) shared++;
    this.#goBack(wanted, Math.min(shared, wanted.length - 1));
    const { addGenerationPrompt: _once, ...kept } = effective;
    // Copies: what the caller does to its objects later must not change the past.
    const messages = [...earlier, ...structuredClone(added)];
    this.#conversation = { base, messages, options: structuredClone(kept), replyStart: wanted.length };
  }

  /** Makes `ids` the timeline; its first `shared` tokens are those of the present one. */
  #goBack(ids: number[], shared: number): void {
    let { sequence } = this.#timeline;
    if (shared < sequence.length) {
      if (sequence.canTruncate(shared)) sequence.truncate(shared);
      else {
        sequence.dispose();
        sequence = this.#model.engine.forward.sequence(); // which resumes from the prefix cache
      }
    }
    this.#timeline = { ids, sequence, drawn: false };
  }

  /** The message that generated tokens make. */
  #readReply(ids: number[]): Message {
    const reader = chatReader(this.#model.tokenizer);
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
    this.#busy = what;
    try {
      await work();
    } finally {
      this.#busy = undefined;
      if (this.#disposed) this.#timeline.sequence.dispose();
    }
  }

  #checkOpen(): void {
    if (this.#disposed) throw new Disposed("A session");
    this.#model.check();
  }

  #checkIdle(): void {
    this.#checkOpen();
    if (this.#busy === undefined) return;
    throw new InvalidArgument(
      `${this.#busy} of this session is under way. Await or end it first, or fork the session.`,
    );
  }
}

function checkPath(path: string): void {
  if (typeof path === "string" && path !== "") return;
  throw new InvalidArgument("A session is saved to and restored from a file; pass its path as a text.");
}
