/** Turns drawn tokens into the parts of a streamed reply, and the parts into a reply. */
import type { ToolCall } from "../chat/messages.ts";
import { ReplyParser } from "../chat/reply.ts";
import type { Tokenizer } from "../tokenizer/tokenizer.ts";
import type { Warning } from "../warning.ts";
import type { GeneratedLogprob, Receipt, Reply, StreamPart, Usage } from "./api.ts";
import type { Draw } from "./draw.ts";
import type { GenerationFacts } from "./generation.ts";
import { StopText } from "./stop_text.ts";

/** What a reply reports beside its content. */
export interface ReplyFacts {
  promptTokens: number;
  /** soft tokens among them */ softTokens?: Pick<Usage, "imageTokens" | "audioTokens">;
  /** filled in by the first draw */ generation: GenerationFacts;
  /** from rendering and loading */ warnings: readonly Warning[];
  receipt: Receipt;
  /** tokens of one sequence at most */ contextLength: number;
}

/** How text comes out of tokens. */
interface Reader {
  push(id: number): ReturnType<ReplyParser["push"]>;
  finish(): ReturnType<ReplyParser["finish"]>;
}

/** A chat reply to `prompt`: text, thoughts and tool calls. */
export function chatReader(tokenizer: Tokenizer, prompt: readonly number[]): Reader {
  return new ReplyParser(tokenizer, { prompt });
}

/** A raw continuation: all text, control tokens left out. */
export function textReader(tokenizer: Tokenizer): Reader {
  const stream = tokenizer.stream({ skipSpecial: true });
  return {
    push: (id) => [{ type: "text", text: stream.push(id) }],
    finish: () => [{ type: "text", text: stream.flush() }],
  };
}

/** Parts of a reply as its tokens come. Stop texts end it before their first character. */
export async function* replyParts(
  draws: AsyncGenerator<Draw, void, undefined>,
  reader: Reader,
  stops: readonly string[],
  facts: ReplyFacts,
): AsyncGenerator<StreamPart, void, undefined> {
  const stop = new StopText(stops);
  const toolCalls: ToolCall[] = [];
  const warnings = [...facts.warnings];
  const logprobs: GeneratedLogprob[] = [];
  let text = "", thinking = "";
  let completionTokens = 0;
  let end: Draw["end"];
  let refusal: Draw["refusal"];
  let stopped = false;

  const accept = (events: ReturnType<Reader["push"]>): StreamPart[] => {
    const parts: StreamPart[] = [];
    for (const event of events) {
      if (stopped) break;
      if (event.type === "warning") warnings.push(event.warning);
      else if (event.type === "text") {
        const shown = stop.push(event.text);
        stopped = shown.stopped;
        text += shown.text;
        if (shown.text !== "") parts.push({ type: "text", text: shown.text });
      } else if (event.type === "thinking") {
        thinking += event.text;
        parts.push({ type: "thinking", text: event.text });
      } else {
        toolCalls.push(event.toolCall);
        parts.push(event);
      }
    }
    return parts;
  };

  for await (const draw of draws) {
    completionTokens++;
    if (draw.logprob) logprobs.push(draw.logprob);
    ({ end, refusal } = draw);
    // A token that ends the reply is no text.
    if (end !== "stop") { for (const part of accept(reader.push(draw.id))) yield part; }
    if (stopped) break;
  }
  if (!stopped) {
    for (const part of accept(reader.finish())) yield part; // a list has no throw() that yield* could pass on
    const rest = stopped ? "" : stop.flush();
    text += rest;
    if (rest !== "") yield { type: "text", text: rest };
  }
  if (!stopped && end === "context") {
    warnings.push({
      code: "context_full",
      message: `The reply was cut off where the context of ${facts.contextLength} tokens was full. ` +
        `Load with a larger contextLength, or shorten the prompt.`,
    });
  }
  if (!stopped && refusal !== undefined) {
    warnings.push({
      code: "memory_limit",
      message:
        `The reply was cut off. ${refusal.message} With maxTokens its cache is reserved before it begins.`,
    });
  }
  const { promptTokens, generation: { cachedTokens, cacheEnd, speculation }, receipt } = facts;
  const finishReason = !stopped && end !== "stop" ? "length" : toolCalls.length > 0 ? "toolCalls" : "stop";
  const reply: Reply = {
    text,
    thinking,
    toolCalls,
    finishReason,
    usage: {
      promptTokens,
      cachedTokens,
      ...(cacheEnd ? { cacheEnd } : {}),
      ...facts.softTokens,
      completionTokens,
    },
    warnings,
    receipt,
    ...(speculation ? { speculation } : {}),
    ...(logprobs.length > 0 ? { logprobs } : {}),
  };
  yield { type: "done", reply, finishReason };
}

/** Runs a stream to its end. */
export async function collect(parts: AsyncGenerator<StreamPart, void, undefined>): Promise<Reply> {
  for await (const part of parts) if (part.type === "done") return part.reply;
  throw new RangeError("The stream ended without a last part.");
}
