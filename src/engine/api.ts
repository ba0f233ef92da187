/** The public types: what `load` takes and gives. */
import type { ContentPart, Message, Tool, ToolCall } from "../chat/messages.ts";
import type { ModelConfig } from "../checkpoint/config.ts";
import type { AudioInput, ImageInput } from "../media/inputs.ts";
import type { MarkbaseError } from "../errors.ts";
import type { ExplainOptions, Explanation } from "../schedule/explain.ts";
import type { KvFormat } from "../schedule/groups.ts";
import type { Tokenizer } from "../tokenizer/tokenizer.ts";
import type { Warning } from "../warning.ts";
import type { SpeculationCounts } from "./speculative.ts";

/** How far long work has come. */
export interface Progress {
  /** What is done: `library`, `download`, `self-check`, `weights` or `compile`. */
  stage: string;
  /** Units done. */
  completed: number;
  /** Units in all. */
  total: number;
}

/** How a model is opened. */
export interface LoadOptions {
  /**
   * Where it runs. `auto` takes `metal` where there is a Metal GPU that passes its self-check, else `cpu`, with a warning if there
   * was a GPU. Default `auto`.
   */
  device?: "auto" | "cpu" | "metal" | "cuda";
  /** `exact`: f32 arithmetic in one fixed order; `fast`: the device's fastest. Default `fast`. */
  precision?: "exact" | "fast";
  /** Most tokens of one sequence. Default: the model's own length, up to 32768 and as memory allows. */
  contextLength?: number;
  /** Bytes that weights, KV cache, activations and towers at work may take together. Default: nine tenths of the device's memory. */
  memory?: number;
  /**
   * Storage of keys and values. Default `f16`. `q8` takes about half of that: 8-bit codes with a scale for each head of a token.
   */
  kvCache?: KvFormat;
  /**
   * GPUs, in `fast` mode: whether matrix units multiply what several rows decode at once, where a weight's format allows. Activations
   * take part in 11 bits then, as those of prompts do. On an NVIDIA H200 that made eight sequences and the check of drafts faster and a
   * single sequence slower (`bench/RESULTS.md`); a reply is the same in any company either way. The CPU device has one way for both.
   * Default `false`.
   */
  matrixUnits?: boolean;
  /**
   * Source of the drafter network that was made for the model, as the first argument of `load`. Replies are the same with it, and
   * come sooner where it guesses well. Rejects with `CheckpointError` (`drafter_mismatch`) for a drafter of another model.
   */
  drafter?: string | URL;
  /** Folder for what is built or fetched. Default: `MARKBASE_CACHE`, else the platform's cache folder. */
  cache?: string;
  /** Called now and then while loading. */
  onProgress?: (progress: Progress) => void;
  /** Ends loading; the promise rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** How the next tokens are chosen and when to stop. Absent values come from the checkpoint's `generation_config.json`. */
export interface CompleteOptions {
  /** Most tokens to generate. Default: as many as the context holds. */
  maxTokens?: number;
  /** Divides the logits; 0, and anything below 1e-6, is greedy. */
  temperature?: number;
  /** Keeps this many of the likeliest tokens; 0 keeps all. */
  topK?: number;
  /** Keeps the likeliest tokens whose probabilities reach this sum, above 0 and up to 1. */
  topP?: number;
  /** Drops tokens below this share of the likeliest one's probability, from 0 to 1. */
  minP?: number;
  /** Above 1 discourages tokens that occur in prompt or reply, below 1 (from 0.01) prefers them. */
  repetitionPenalty?: number;
  /** Subtracted from the logit of each token that was generated. */
  presencePenalty?: number;
  /** Subtracted from a token's logit for each time that it was generated. */
  frequencyPenalty?: number;
  /** Whole number; the same seed gives the same text. Default: a random one, which the receipt names. */
  seed?: number;
  /** Ends the reply before any of these texts. */
  stop?: string | readonly string[];
  /** Added to the logits, by token id, from -1e6 (never drawn) to 1e6; tokens that the checkpoint suppresses are never drawn unless they are named here. */
  logitBias?: Readonly<Record<number, number>> | ReadonlyMap<number, number>;
  /** Log-probabilities of the generated tokens, and of this many alternatives for each. */
  logprobs?: boolean | number;
  /**
   * Drafts of the tokens to come, several of which one forward can check: by the loaded drafter, or without one by looking up how
   * the text went on before. They change no token, only the time. `true`: as many as pay, by how
   * many were right lately and what forwards took; 1 to 8: always so many; `false`: none. Where sequences share a forward their drafts share its rows, 16 in all. Default: `true` with a drafter, else `false`.
   */
  speculative?: boolean | number;
  /** Ends the work; calls reject with the signal's reason. */
  signal?: AbortSignal;
}

/** Options of a generation from token ids. */
export interface GenerateOptions extends CompleteOptions {
  /** Go on past tokens that end a reply. */
  ignoreEos?: boolean;
}

/** Media of a prompt that is given as token ids. */
export interface PromptOptions {
  /** In the order of their runs of placeholders in the ids; a video takes one run for each frame. */
  media?: readonly ContentPart[];
  /** Soft tokens of a picture at most: 70, 140, 280, 560 or 1120. Default: what the checkpoint says. */
  imageTokens?: number;
}

/** Options of a chat reply. */
export interface ChatOptions extends CompleteOptions {
  /** Functions that the model may call. */
  tools?: readonly Tool[];
  /** Let the model think first, where its template knows how. */
  thinking?: boolean;
  /** Soft tokens of a picture at most: 70, 140, 280, 560 or 1120. Default: what the checkpoint says. */
  imageTokens?: number;
}

/** Options of `embedImage` and `embedAudio`. */
export interface EmbedOptions {
  /** Soft tokens of a picture at most: 70, 140, 280, 560 or 1120. Default: what the checkpoint says. */
  imageTokens?: number;
  /** Ends the work; the promise rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** Options of `renderChat`. */
export interface RenderChatOptions {
  /** Functions that the model may call. */
  tools?: readonly Tool[];
  /** Let the model think first, where its template knows how. */
  thinking?: boolean;
  /** End with the beginning of the model's turn. Default true. */
  addGenerationPrompt?: boolean;
}

/** Options of `Session.append`. */
export interface AppendOptions extends RenderChatOptions, PromptOptions {
  /** Ends reading media; the promise rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** A token and the natural logarithm of its probability before temperature, penalties and biases. */
export interface TokenLogprob {
  /** Token id. */
  id: number;
  /** At most 0. */
  logprob: number;
}

/** Log-probability of a generated token, with the likeliest tokens at its place. */
export interface GeneratedLogprob extends TokenLogprob {
  /** In descending order. */
  top: TokenLogprob[];
}

/** Counts of tokens. */
export interface Usage {
  /** Tokens of the prompt. */
  promptTokens: number;
  /** Of these, tokens whose keys and values were in the cache. */
  cachedTokens: number;
  /**
   * Why no more of them: `prompt`: the whole prompt was there (its last token is always computed); `unseen`: what follows had
   * not been computed; `evicted`: it had been, but others needed the room.
   */
  cacheEnd?: "prompt" | "unseen" | "evicted";
  /** Generated tokens, the one that ended the reply included. */
  completionTokens: number;
  /** Of the prompt's tokens, soft tokens of pictures and frames; absent without any. */
  imageTokens?: number;
  /** Of the prompt's tokens, soft tokens of sounds; absent without any. */
  audioTokens?: number;
}

/**
 * What is needed, beside the options, to get the same reply again: `generate(promptIds, {…options, seed})`. With precision
 * `fast` and quantised weights the reply also depends, in its rounding, on which part of the prompt was cached from an
 * earlier reply (`usage.cachedTokens`); with `exact` it never does.
 */
export interface Receipt {
  /** Fingerprint of the weights: `sha256:` of all bytes, or `sampled-sha256:` of headers, sizes and samples of large files. */
  weights: string;
  /** SHA-256 of the native library. */
  library: string;
  /** Device that ran the reply. */
  device: string;
  /** Precision that the model was loaded with. */
  precision: "exact" | "fast";
  /** Storage of keys and values that the model was loaded with. */
  kvCache: KvFormat;
  /** Whether the model was loaded to decode on matrix units. */
  matrixUnits: boolean;
  /** Seed of the draws. */
  seed: number;
  /** Token ids of the prompt. */
  promptIds: number[];
  /** Of a prompt with media: SHA-256 of what the towers took for each run of placeholders; pass the same media to replay. */
  media?: string[];
}

/** A finished reply. */
export interface Reply {
  /** The answer, without thoughts, calls and control tokens. */
  text: string;
  /** The thoughts; empty if there were none. */
  thinking: string;
  /** Calls of the given tools. */
  toolCalls: ToolCall[];
  /**
   * The model ended (or a stop text came); `maxTokens`, the context or the cache's end was reached; the model waits for tool results;
   * or, in a batch alone, the request failed.
   */
  finishReason: "stop" | "length" | "toolCalls" | "error";
  /** What went wrong; in a batch alone. */
  error?: MarkbaseError;
  /** Counts of tokens. */
  usage: Usage;
  /** Whatever was ignored, repaired or cut off. */
  warnings: Warning[];
  /** How to get the same reply again. */
  receipt: Receipt;
  /** How drafts fared, if there were any to be made. */
  speculation?: SpeculationCounts;
  /** For each generated token, if asked for. */
  logprobs?: GeneratedLogprob[];
}

/** A piece of a streamed reply; the last one is `done`. */
export type StreamPart =
  | {
    /** Next piece of the answer. */
    type: "text";
    /** Joined, the pieces are the reply's text. */
    text: string;
  }
  | {
    /** Next piece of the thoughts. */
    type: "thinking";
    /** Joined, the pieces are the reply's thinking. */
    text: string;
  }
  | {
    /** A complete tool call. */
    type: "toolCall";
    /** The call. */
    toolCall: ToolCall;
    /** From 0, in the order of the reply. */
    index: number;
  }
  | {
    /** The end. */
    type: "done";
    /** The whole reply. */
    reply: Reply;
    /** As in the reply. */
    finishReason: Reply["finishReason"];
  };

/** One entry of a batch: a conversation, or a text to continue, with options of its own. */
export type BatchRequest =
  | readonly Message[]
  | (ChatOptions & {
    /** The conversation. */
    messages: readonly Message[];
  })
  | (CompleteOptions & {
    /** The text to continue. */
    prompt: string;
  });

/** Bytes by kind. */
export interface MemoryReport {
  /** Weights, wherever they lie, a drafter's included. */
  weights: number;
  /** Of these, bytes that are read in mapped files, which the system shares between processes and reads on demand. */
  mapped: number;
  /** Of these, bytes that were copied at load since the device could not read them in place. */
  copied: number;
  /** Weights that the device reads in a layout of its own, instead of in the file. */
  repacked: number;
  /** KV cache: capacity. */
  kv: number;
  /** Of it, bytes in use. */
  kvUsed: number;
  /** Activations and scratch. */
  activations: number;
  /** Most bytes that the device has held so far, without mapped files. */
  peak: number;
}

/**
 * A loaded model: immutable and shareable. Any number of calls may run at the same time, as far as the KV cache has room
 * for their prompts and `maxTokens`; others reject with `MemoryLimit`, and wait in `batch` alone. `using` releases it; calls under way
 * then end with `Disposed`.
 */
export interface Model extends Disposable, AsyncDisposable {
  /** The architecture. */
  readonly config: ModelConfig;
  /** Most tokens of one sequence. */
  readonly contextLength: number;
  /** The tokenizer. Throws `TokenizerError` if the checkpoint has none. */
  readonly tokenizer: Tokenizer;
  /** What was noticed at load, and what was changed since, such as smaller chunks. */
  readonly warnings: readonly Warning[];
  /** The prompt of a conversation as text. Throws `TemplateError` if the checkpoint has no template. */
  renderChat(messages: readonly Message[], options?: RenderChatOptions): string;
  /** Logits at the last `last` (default 1) positions: f32 `last` × vocabulary, row-major, after the soft cap. */
  logits(
    ids: ArrayLike<number>,
    options?: PromptOptions & { last?: number; signal?: AbortSignal },
  ): Promise<Float32Array>;
  /** Token ids that follow `ids`, the one that ends the reply included. */
  generate(
    ids: ArrayLike<number>,
    options?: GenerateOptions & PromptOptions,
  ): AsyncGenerator<number, void, undefined>;
  /**
   * States at the last position: the input of layer 0, then the output of each layer before the final norm; layers + 1
   * arrays of hiddenSize.
   */
  hidden(ids: ArrayLike<number>, options?: { signal?: AbortSignal }): Promise<Float32Array[]>;
  /**
   * What the model sees of a picture: f32 soft tokens × hiddenSize, row-major, as they replace embeddings. Rejects with
   * `MarkbaseError` (`no_vision`) where the model has no eyes, `MediaError`, `InvalidArgument` or `MissingPermission`.
   */
  embedImage(image: ImageInput, options?: EmbedOptions): Promise<Float32Array>;
  /** What the model hears of a sound (its first 30 s), as `embedImage`; code `no_audio` where the model has no ears. */
  embedAudio(audio: AudioInput, options?: EmbedOptions): Promise<Float32Array>;
  /** Answers a conversation. */
  chat(messages: readonly Message[], options?: ChatOptions): Promise<Reply>;
  /**
   * Answers a conversation piece by piece. Leaving the loop, or `return()`, ends the work and gives its cache back at once; so it
   * does for `generate`. An iterator that is dropped without either keeps its cache until it is collected.
   */
  stream(messages: readonly Message[], options?: ChatOptions): AsyncGenerator<StreamPart, void, undefined>;
  /** Continues a text as it stands, after the token that begins a sequence. */
  complete(text: string, options?: CompleteOptions): Promise<Reply>;
  /**
   * Answers many requests at once; the replies are in their order. `options` hold where a request has none of its own. A request
   * that fails does not disturb the others: its reply has `finishReason: "error"` and the `error`, whose code is `aborted` where a
   * signal of its own ended it. Rejects for a request that is none, before any is begun, and when the signal of `options` aborts or
   * the model is disposed.
   */
  batch(requests: readonly BatchRequest[], options?: ChatOptions): Promise<Reply[]>;
  /** A new, empty timeline. */
  session(): Session;
  /** The plan on a device: layers, ops, dispatches, bytes, FLOPs and predicted time. */
  explain(options?: ExplainOptions): Explanation;
  /** Bytes by kind. */
  memory(): MemoryReport;
}

/** One timeline of tokens and its cache. `using` gives its cache back. */
export interface Session extends Disposable, AsyncDisposable {
  /** All tokens so far, appended and generated. */
  readonly ids: readonly number[];
  /** What was ignored, cut or repaired of the messages and media so far. */
  readonly warnings: readonly Warning[];
  /**
   * Adds token ids, or messages: these are rendered together with all messages before, and the timeline goes back to where
   * the two differ if need be.
   */
  append(input: ArrayLike<number> | readonly Message[], options?: AppendOptions): Promise<void>;
  /**
   * Generates token ids and adds them to the timeline; towers run for media that the cache does not hold. Until it ends, or is ended by
   * leaving the loop or `return()`, other calls of the session are refused; an iterator that is dropped without either ends when it
   * is collected.
   */
  generate(options?: GenerateOptions): AsyncGenerator<number, void, undefined>;
  /** A second timeline that starts with the same tokens and shares their cache. */
  fork(): Session;
  /** Writes the timeline and its cache to a file. */
  save(path: string): Promise<void>;
  /** Replaces the timeline by a saved one. Throws `SessionError` for a damaged file or another model's. */
  restore(path: string): Promise<void>;
}

export type { KvFormat, SpeculationCounts };
export type { ContentPart, ExplainOptions, Explanation, Message, Tool, ToolCall, Warning };
