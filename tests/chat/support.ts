/** Templates, fixtures and tokenizers that the chat tests share. */

import { ChatTemplate } from "../../src/chat/template.ts";
import type { Message, Tool } from "../../src/chat/messages.ts";
import type { ReplyEvent } from "../../src/chat/reply.ts";
import { loadTokenizer, type Tokenizer } from "../../src/tokenizer/tokenizer.ts";

const FIXTURES = `${import.meta.dirname}/../fixtures/chat`;
const TINY = `${import.meta.dirname}/../../examples/tiny`;

/** One conversation of `cases.json`. */
export interface ChatCase {
  name: string;
  messages: Message[];
  options: { tools?: Tool[]; enable_thinking?: boolean; add_generation_prompt?: boolean };
  updated: string | { error: string };
  updated_ids?: number[];
  launch: string | { error: string };
}

/** The chat fixtures. */
export const fixtures: {
  templates: Record<string, string>;
  cases: ChatCase[];
  tool_call_parsing: {
    model_output: string;
    calls: { name: string; arguments: Record<string, unknown> }[];
  }[];
} = JSON.parse(await Deno.readTextFile(`${FIXTURES}/cases.json`));

/** The goldens of the small model. */
export const tinyCases: {
  name: string;
  messages: Message[];
  tools: Tool[] | null;
  enable_thinking: boolean;
  prompt: string;
  input_ids?: number[];
  output_ids: number[];
  output_text: string;
}[] = JSON.parse(await Deno.readTextFile(`${FIXTURES}/tiny.json`));

/** Gemma 4's control tokens and their ids. */
export const gemmaTokens: ReadonlyMap<string, number> = new Map(
  Object.entries(
    JSON.parse(await Deno.readTextFile(`${FIXTURES}/../tokenizer/gemma4_vocab_delta.json`)).control_tokens,
  ),
);

/** A template of the fixtures. */
export async function gemmaTemplate(name: "updated" | "launch"): Promise<ChatTemplate> {
  const source = await Deno.readTextFile(`${FIXTURES}/gemma4_${name}.jinja`);
  return new ChatTemplate(source, { bosToken: "<bos>", eosToken: "<eos>", controlTokens: gemmaTokens });
}

/** A template made in a test, with Gemma 4's control tokens. */
export function template(source: string, limits = {}): ChatTemplate {
  return new ChatTemplate(source, { bosToken: "<bos>", controlTokens: gemmaTokens, limits });
}

/** The small model's tokenizer. */
export function tinyTokenizer(): Promise<Tokenizer> {
  return loadTokenizer(TINY);
}

/** The small model's template. */
export async function tinyTemplate(): Promise<ChatTemplate> {
  const source = await Deno.readTextFile(`${TINY}/chat_template.jinja`);
  const { controlTokens } = await tinyTokenizer();
  return new ChatTemplate(source, { bosToken: "<bos>", controlTokens });
}

/** Events with neighbouring texts of one kind joined, so that the cut into pieces does not show. */
export function joined(events: readonly ReplyEvent[]): ReplyEvent[] {
  const result: ReplyEvent[] = [];
  for (const event of events) {
    const last = result.at(-1);
    if (
      (event.type === "text" || event.type === "thinking") && last?.type === event.type
    ) last.text += event.text;
    else result.push(structuredClone(event));
  }
  return result;
}
