/** Flags that several commands share, and what they mean to the library. */
import { type ChatOptions, load, type LoadOptions, type Model } from "../../mod.ts";
import type { Flags, Values } from "./args.ts";
import type { ProgressBar } from "./progress.ts";

/** How a model is opened. */
export const loadFlags = {
  model: {
    type: "string",
    value: "SOURCE",
    help: 'folder, file of weights, org/name on the hub, or "tiny" (default: tiny)',
  },
  device: { type: "string", choices: ["auto", "cpu", "metal", "cuda"], help: "where to run (default: auto)" },
  precision: {
    type: "string",
    choices: ["fast", "exact"],
    help: "fast arithmetic or exact f32 (default: fast)",
  },
  context: {
    type: "number",
    value: "TOKENS",
    help: "context length (default: the model's, as memory allows)",
  },
  memory: {
    type: "bytes",
    value: "BYTES",
    help: "most memory for weights, cache and activations together, such as 8GB",
  },
  drafter: { type: "string", value: "SOURCE", help: "drafter network of the model" },
  "kv-cache": {
    type: "string",
    choices: ["f16", "f32", "q8"],
    help: "storage of the KV cache (default: f16; q8 takes half of it)",
  },
  "matrix-units": {
    type: "boolean",
    help: "GPUs: decode on matrix units, for many sequences at once or drafts",
  },
} as const satisfies Flags;

/** How text is generated. */
export const generationFlags = {
  "max-tokens": { type: "number", value: "N", help: "most tokens to generate" },
  temperature: { type: "number", value: "T", help: "0 is greedy (default: the model's)" },
  "top-k": { type: "number", value: "K", help: "keep the K likeliest tokens" },
  "top-p": { type: "number", value: "P", help: "keep the likeliest tokens of total probability P" },
  "min-p": { type: "number", value: "P", help: "drop tokens below P times the likeliest" },
  "repetition-penalty": {
    type: "number",
    value: "R",
    help: "above 1 discourages tokens that stand in the context",
  },
  seed: { type: "number", value: "N", help: "same seed, same text" },
  speculative: { type: "boolean", help: "look up drafts in the text (with --drafter they come from it)" },
  stop: { type: "strings", value: "TEXT", help: "stop before this text (repeatable)" },
} as const satisfies Flags;

/** Library options of {@linkcode loadFlags}. */
export function loadOptions(values: Values<typeof loadFlags>): LoadOptions {
  return defined({
    device: values.device as LoadOptions["device"],
    precision: values.precision as LoadOptions["precision"],
    contextLength: values.context,
    drafter: values.drafter,
    memory: values.memory,
    kvCache: values["kv-cache"] as LoadOptions["kvCache"],
    matrixUnits: values["matrix-units"],
  });
}

/** The model that {@linkcode loadFlags} name, with its progress on the bar until it is there. */
export async function loadModel(
  values: Values<typeof loadFlags>,
  bar: ProgressBar,
  signal: AbortSignal,
): Promise<Model> {
  const options = { ...loadOptions(values), onProgress: bar.update, signal };
  const model = await load(values.model ?? "tiny", options);
  bar.stop();
  return model;
}

/** Library options of {@linkcode generationFlags}. */
export function generationOptions(values: Values<typeof generationFlags>): ChatOptions {
  return defined({
    maxTokens: values["max-tokens"],
    temperature: values.temperature,
    topK: values["top-k"],
    topP: values["top-p"],
    minP: values["min-p"],
    repetitionPenalty: values["repetition-penalty"],
    seed: values.seed,
    speculative: values.speculative,
    stop: values.stop,
  });
}

/** The same object without undefined entries. */
function defined<T extends object>(options: T): T {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as T;
}
