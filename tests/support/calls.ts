/** Calls that many tests make of a model. */
import type { Message, Model } from "../../mod.ts";

/** Load options under which results are compared with golden values, and with each other bit for bit. */
export const EXACT = { device: "cpu", precision: "exact", kvCache: "f32" } as const;

/** What a checkpoint suggests that suggests nothing. */
export const NO_SUGGESTION = {
  temperature: null,
  topK: null,
  topP: null,
  minP: null,
  repetitionPenalty: null,
  maxTokens: null,
} as const;

/** Questions that the shipped model answers. */
export const QUESTIONS = [
  "What is 27 + 45?",
  "What is the capital of Japan?",
  "Tell me a short story.",
  "What is 8 times 7?",
  "Count from 3 to 9.",
  "What is the opposite of hot?",
  "Show me a wave emoji.",
  "What is the capital of France?",
];

/** A conversation of one question. */
export function user(content: string): Message[] {
  return [{ role: "user", content }];
}

/** Ids of a prompt of `length`, which every fixture's vocabulary has. */
export function idsOf(length: number, start = 0): number[] {
  return Array.from({ length }, (_, i) => 3 + (start + i * 29) % 230);
}

/** All ids that a model generates after others. */
export async function generated(
  model: Pick<Model, "generate">,
  ids: readonly number[],
  options: Parameters<Model["generate"]>[1],
): Promise<number[]> {
  return await Array.fromAsync(model.generate(ids, options));
}
