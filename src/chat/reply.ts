/** Splits what a model writes into text, thinking and tool calls, token by token. */

import type { Warning } from "../warning.ts";
import type { ToolCall } from "./messages.ts";
import { parseToolCall, QUOTE_TOKEN, type RawToolCall } from "./tool_call.ts";

/** What happened in a reply. Texts come in pieces that join to the whole. */
export type ReplyEvent =
  | {
    type: "text";
    /** Next piece of the answer. */
    text: string;
  }
  | {
    type: "thinking";
    /** Next piece of the thoughts. */
    text: string;
  }
  | {
    type: "toolCall";
    /** The call, complete. */
    toolCall: ToolCall;
    /** From 0, in the order of the reply. */
    index: number;
  }
  | {
    type: "warning";
    /** What was repaired, dropped or kept as text. */
    warning: Warning;
  };

/** What the parser needs of a tokenizer. */
export interface ReplyTokenizer {
  /** Text → id of each control token. */
  readonly controlTokens: ReadonlyMap<string, number>;
  /** A decoder for ids that arrive one by one. */
  stream(): { push(id: number): string; flush(): string };
}

/** How to parse. */
export interface ReplyParserOptions {
  /** Makes the id of the call with this index; "call_0", "call_1" … by default. */
  callId?: (index: number) => string;
  /** The ids that the reply goes on from: some templates end a prompt inside a channel of thoughts. Default: none. */
  prompt?: readonly number[];
}

/** The ids that end a turn: those that the tokenizer's files name, and those that Gemma's format defines. */
export function stopTokens(
  tokenizer: { stops?: ReadonlySet<number>; controlTokens: ReadonlyMap<string, number> },
): Set<number> {
  const ids = new Set(tokenizer.stops ?? []);
  for (const token of ["<eos>", "<turn|>", "<|tool_response>", "<end_of_turn>"]) {
    const id = tokenizer.controlTokens.get(token);
    if (id !== undefined) ids.add(id);
  }
  return ids;
}

/** The name of the channel in which the model thinks. */
const THOUGHT_HEADER = "thought\n";

/**
 * The state of one reply. Decisions are taken on the ids of control tokens only, one at a time, so that text which
 * spells a marker stays text and the grouping of tokens does not matter. Never throws for what a model wrote.
 */
export class ReplyParser {
  readonly #tokenNames: ReadonlyMap<number, string>;
  readonly #decoder: { push(id: number): string; flush(): string };
  readonly #callId: (index: number) => string;
  readonly #warned = new Set<string>();
  #state: "text" | "thinking" | "call" | "response" = "text";
  #call: { pieces: string[]; length: number; quotes: number[] } = { pieces: [], length: 0, quotes: [] };
  #calls = 0;
  #header = ""; // what has come of the channel's name, while it may still be "thought\n"
  #inHeader = false;
  #heldSpace = ""; // line ends of the thoughts, dropped if the channel ends after them
  #events: ReplyEvent[] = [];

  /** A parser for one reply. */
  constructor(tokenizer: ReplyTokenizer, options: ReplyParserOptions = {}) {
    this.#tokenNames = new Map([...tokenizer.controlTokens].map(([name, id]) => [id, name]));
    this.#decoder = tokenizer.stream();
    this.#callId = options.callId ?? ((index) => `call_${index}`);
    this.#beginAfter(options.prompt ?? []);
  }

  /** Takes the next id. Ids of stop tokens may be passed or left out. */
  push(id: number): ReplyEvent[] {
    const name = this.#tokenNames.get(id);
    if (name === undefined) this.#add(this.#decoder.push(id));
    else {
      this.#add(this.#decoder.flush());
      this.#control(name);
    }
    return this.#take();
  }

  /** Ends the reply: a call that was cut off becomes text, with a warning. */
  finish(): ReplyEvent[] {
    this.#add(this.#decoder.flush());
    if (this.#state === "call") this.#endCall(false);
    if (this.#state === "thinking") this.#endThinking();
    this.#state = "text";
    return this.#take();
  }

  /** Begins in the channel that the prompt has left open, if its last control token opens one. */
  #beginAfter(prompt: readonly number[]): void {
    const last = prompt.findLastIndex((id) => this.#tokenNames.has(id));
    if (last < 0 || this.#tokenNames.get(prompt[last]) !== "<|channel>") return;
    for (const id of prompt.slice(last)) this.push(id); // what it says of itself is the prompt's
  }

  #take(): ReplyEvent[] {
    const events = this.#events;
    this.#events = [];
    return events;
  }

  #control(name: string): void {
    if (this.#state === "call") {
      if (name === QUOTE_TOKEN) {
        this.#call.quotes.push(this.#call.length);
        this.#addToCall(QUOTE_TOKEN);
      } else if (name === "<tool_call|>") {
        this.#endCall(true);
        this.#state = "text";
      } else if (CALL_ENDS.has(name)) {
        this.#endCall(false);
        this.#state = "text";
        this.#control(name);
      } else this.#addToCall(name); // makes the call unreadable, or part of a text; either way nothing is lost
      return;
    }
    switch (name) {
      case "<|channel>":
        if (this.#state === "thinking") this.#endThinking();
        this.#state = "thinking";
        this.#inHeader = true;
        this.#header = "";
        return;
      case "<channel|>":
        if (this.#state === "thinking") this.#endThinking();
        else this.#warnStray(name);
        this.#state = "text";
        return;
      case "<|tool_call>":
        if (this.#state === "thinking") this.#endThinking();
        this.#state = "call";
        this.#call = { pieces: [], length: 0, quotes: [] };
        return;
      case "<|tool_response>":
        if (this.#state === "thinking") this.#endThinking();
        this.#state = "response";
        return;
      case "<tool_response|>":
        if (this.#state !== "response") this.#warnStray(name);
        else this.#state = "text";
        return;
      case "<turn|>":
      case "<eos>":
      case "<end_of_turn>":
        if (this.#state === "thinking") this.#endThinking();
        this.#state = "text";
        return;
      default:
        this.#warnStray(name);
    }
  }

  #add(text: string): void {
    if (text === "") return;
    if (this.#state === "call") this.#addToCall(text);
    else if (this.#state === "thinking") this.#addThinking(text);
    else if (this.#state === "text") this.#events.push({ type: "text", text });
    else {
      this.#warn(
        "tool_response_invented",
        "The model wrote the result of a tool itself; it was dropped. Stop at <|tool_response> and send the real one.",
      );
    }
  }

  #addToCall(text: string): void {
    this.#call.pieces.push(text);
    this.#call.length += text.length;
  }

  #addThinking(text: string): void {
    if (this.#inHeader) {
      this.#header += text;
      if (THOUGHT_HEADER.startsWith(this.#header) && this.#header !== THOUGHT_HEADER) return;
      this.#inHeader = false;
      text = this.#header.startsWith(THOUGHT_HEADER)
        ? this.#header.slice(THOUGHT_HEADER.length)
        : this.#header;
    }
    text = this.#heldSpace + text;
    let end = text.length;
    while (end > 0 && text[end - 1] === "\n") end--;
    this.#heldSpace = text.slice(end);
    if (end > 0) this.#events.push({ type: "thinking", text: text.slice(0, end) });
  }

  #endThinking(): void {
    // Only the name came: "thought" without its line end is an empty thought, another word is a thought.
    if (this.#inHeader && this.#header !== "" && this.#header !== THOUGHT_HEADER.trimEnd()) {
      this.#events.push({ type: "thinking", text: this.#header });
    }
    this.#inHeader = false;
    this.#header = "";
    this.#heldSpace = "";
  }

  /** Emits the call, or its raw text if it cannot be read. `closed`: the model wrote the closing token. */
  #endCall(closed: boolean): void {
    const raw: RawToolCall = { text: this.#call.pieces.join(""), quotes: this.#call.quotes };
    const parsed = parseToolCall(raw, closed);
    if (parsed === undefined) {
      this.#events.push({ type: "text", text: `<|tool_call>${raw.text}${closed ? "<tool_call|>" : ""}` });
      const shown = raw.text.length > 200 ? raw.text.slice(0, 197) + "…" : raw.text;
      this.#warn(
        closed ? "tool_call_unreadable" : "tool_call_cut_off",
        `A tool call ${
          closed ? "could not be read" : "was cut off"
        }; its text was kept in the answer: ${shown}`,
      );
      return;
    }
    const index = this.#calls++;
    const toolCall = { id: this.#callId(index), name: parsed.name, arguments: parsed.arguments };
    this.#events.push({ type: "toolCall", toolCall, index });
    if (parsed.repaired || !closed) {
      this.#warn(
        "tool_call_repaired",
        `Tool call ${index} (${parsed.name}) was malformed and was repaired; check its arguments.`,
      );
    }
  }

  #warnStray(name: string): void {
    if (this.#warned.has(name)) return;
    this.#warned.add(name);
    this.#warn("stray_control_token", `The model wrote ${name} where it has no meaning; it was dropped.`);
  }

  #warn(code: string, message: string): void {
    if (code === "tool_response_invented") {
      if (this.#warned.has(code)) return;
      this.#warned.add(code);
    }
    this.#events.push({ type: "warning", warning: { code, message } });
  }
}

/** Control tokens that end a call whose own end is missing. */
const CALL_ENDS = new Set([
  "<|tool_call>",
  "<|tool_response>",
  "<tool_response|>",
  "<|channel>",
  "<channel|>",
  "<turn|>",
  "<eos>",
  "<end_of_turn>",
]);
