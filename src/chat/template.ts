/** Renders conversations with a checkpoint's own chat template. */

import { parse, tokenize } from "npm:@huggingface/jinja@0.5.11";
import { describe } from "../arguments.ts";
import { InvalidArgument, MarkbaseError, TemplateError, UnknownOption } from "../errors.ts";
import type { Segment } from "../tokenizer/tokenizer.ts";
import type { Warning } from "../warning.ts";
import { escapeCallerText, splitRendered, templateTextFence } from "./escape.ts";
import { DEFAULT_LIMITS, runTemplate, type TemplateLimits } from "./interpreter.ts";
import {
  type ContentPart,
  ignoredField,
  type Message,
  prepareMessages,
  prepareTools,
  type Tool,
} from "./messages.ts";
import { lineOfToken, statementLines, type TemplateNode, type TemplateToken } from "./template_lines.ts";

/** How to open a template. */
export interface ChatTemplateOptions {
  /** Text of the token that begins a sequence, as the template's `bos_token`. */
  bosToken?: string;
  /** Text of the token that ends a sequence, as the template's `eos_token`. */
  eosToken?: string;
  /** Text → id of every control token of the vocabulary. */
  controlTokens: ReadonlyMap<string, number>;
  /** Bounds on what the template may use. */
  limits?: Partial<TemplateLimits>;
  /** The clock of `strftime_now`. */
  now?: () => Date;
}

/** How to render. */
export interface RenderOptions {
  /** Functions that the model may call. */
  tools?: readonly Tool[];
  /** Ask for thinking (the template's `enable_thinking`). */
  thinking?: boolean;
  /** End with the start of the model's turn. Default true. */
  addGenerationPrompt?: boolean;
}

/** A prompt. */
export interface RenderedChat {
  /** The whole text, as the reference implementation prints it. */
  text: string;
  /** Control tokens, and the texts between them, which hold none. */
  segments: Segment[];
  /** Media parts in the order of their placeholders. */
  media: ContentPart[];
  /** What was changed or kept as text. */
  warnings: Warning[];
}

/** Levels of nesting that messages and tools may have. */
const CALLER_DEPTH = 64;

const THINKING_UNKNOWN: Warning = {
  code: "thinking_ignored",
  message: "This model's chat template does not know thinking; the option is ignored.",
};

/** What takes the name of a field as its first argument, or by the keyword `attribute`. */
const NAMED_BY = ["get", "attr", "selectattr", "rejectattr", "attribute"];

const RENDER_OPTIONS = ["tools", "thinking", "addGenerationPrompt"];

/** A parsed chat template; immutable, any number of renders. */
export class ChatTemplate {
  /** The template's text. */
  readonly source: string;
  readonly #program: ReturnType<typeof parse>;
  readonly #tokens: readonly TemplateToken[];
  readonly #controlTokens: ReadonlyMap<string, number>;
  readonly #limits: TemplateLimits;
  readonly #now: () => Date;
  readonly #bosToken: string;
  readonly #eosToken: string;
  #lines: Map<TemplateNode, number> | undefined;
  #systemParts: boolean | undefined;

  /** Parses the template. Throws TemplateError with the line, where the parser tells it. */
  constructor(source: string, options: ChatTemplateOptions) {
    this.source = source;
    this.#controlTokens = options.controlTokens;
    this.#limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.#now = options.now ?? (() => new Date());
    const fence = templateTextFence(options.controlTokens);
    this.#bosToken = fence(options.bosToken ?? "");
    this.#eosToken = fence(options.eosToken ?? "");
    [this.#program, this.#tokens] = parseTemplate(source, this.#limits);
    fenceLiterals(this.#program, fence);
  }

  /**
   * Renders a conversation. Throws InvalidArgument for messages or tools of the wrong shape, TemplateError when the
   * template raises, fails, passes a limit or does not know tools.
   */
  render(messages: readonly Message[], options: RenderOptions = {}): RenderedChat {
    for (const name of Object.keys(options)) {
      if (!RENDER_OPTIONS.includes(name)) throw new UnknownOption(name, RENDER_OPTIONS);
    }
    const prepared = prepareMessages(messages, {
      channels: this.#controlTokens.has("<|channel>"),
      systemParts: messages instanceof Array && messages.some(hasSystemParts) && this.#takesSystemParts(),
      toolResponses: messages instanceof Array && messages.some(isMappingResult) &&
        this.#readsField("tool_responses"),
    });
    const variables: Record<string, unknown> = {
      messages: callerValue(prepared.messages, "messages"),
      bos_token: this.#bosToken,
      eos_token: this.#eosToken,
      add_generation_prompt: options.addGenerationPrompt ?? true,
    };
    const tools = options.tools === undefined ? [] : prepareTools(options.tools);
    if (tools.length > 0) {
      this.#checkTools();
      variables.tools = callerValue(tools, "tools");
    }
    if (options.thinking !== undefined) variables.enable_thinking = options.thinking;
    const { text, segments, warnings } = splitRendered(this.#run(variables), this.#controlTokens);
    this.#checkMedia(prepared.media, segments);
    const thoughtless = options.thinking && !this.#reads("enable_thinking") ? [THINKING_UNKNOWN] : [];
    const ignored = prepared.furtherFields.filter(({ field }) => !this.#readsField(field))
      .map(({ field, where }) => ignoredField(field, where));
    return {
      text,
      segments,
      media: prepared.media,
      warnings: [...prepared.warnings, ...ignored, ...thoughtless, ...warnings],
    };
  }

  /** Whether a variable of this name occurs in the template. */
  #reads(name: string): boolean {
    return this.#tokens.some(({ type, value }) => type === "Identifier" && value === name);
  }

  /**
   * Whether the template looks at a field of this name: `message.name`, `message["name"]`, `message.get("name")`, or by the name
   * that a filter is given. A text that something is compared with, as in `part.type == "audio"`, is no field.
   */
  #readsField(name: string): boolean {
    const tokens = this.#tokens;
    const is = (at: number, ...types: string[]) => types.includes(tokens[at]?.type);
    return tokens.some(({ type, value }, i) => {
      if (value !== name) return false;
      if (type === "Identifier") return is(i - 1, "Dot");
      if (type !== "StringLiteral") return false;
      if (is(i - 1, "OpenSquareBracket")) {
        return is(i + 1, "CloseSquareBracket") &&
          is(i - 2, "Identifier", "CloseSquareBracket", "CloseParen", "StringLiteral");
      }
      const by = is(i - 1, "OpenParen", "Equals") ? tokens[i - 2]?.value : undefined;
      return by !== undefined && NAMED_BY.includes(by);
    });
  }

  /** Whether the template goes through the parts of a system message; others print the list as it is, or its first part alone. */
  #takesSystemParts(): boolean {
    if (this.#systemParts !== undefined) return this.#systemParts;
    const parts = ["first", "second"].map((text) => ({ type: "text", text }));
    const messages = [{ role: "system", content: parts }, { role: "user", content: "third" }];
    const run = runTemplate(
      this.#program as unknown as TemplateNode,
      { messages, bos_token: "", eos_token: "", add_generation_prompt: true },
      this.#limits,
      this.#now,
    );
    return this.#systemParts = "text" in run && /first[^{}[\]]*second/.test(run.text);
  }

  /** A template that never reads `tools` would ignore them silently. */
  #checkTools(): void {
    if (this.#tokens.some(({ type, value }) => type === "Identifier" && value === "tools")) return;
    throw new TemplateError(
      "tools_unsupported",
      "This model's chat template does not know tools. Leave tools out, or describe them in a message.",
    );
  }

  #run(variables: Record<string, unknown>): string {
    const program = this.#program as unknown as TemplateNode;
    const run = runTemplate(program, variables, this.#limits, this.#now);
    if ("text" in run) return run.text;
    throw templateError(run.error, this.#lineOf(run.statement));
  }

  #lineOf(statement: TemplateNode | undefined): number | undefined {
    if (statement === undefined) return undefined;
    this.#lines ??= statementLines(this.source, this.#tokens, this.#program as unknown as TemplateNode);
    return this.#lines.get(statement);
  }

  /** Every media part must have its placeholder, in order; a template that skips one would ignore it silently. */
  #checkMedia(media: readonly ContentPart[], segments: readonly Segment[]): void {
    if (media.length === 0) return;
    const kinds = new Map<number, string>();
    for (const kind of ["image", "audio", "video"]) {
      const id = this.#controlTokens.get(`<|${kind}|>`);
      if (id !== undefined) kinds.set(id, kind);
    }
    const shown = segments.flatMap((segment) =>
      "control" in segment ? kinds.get(segment.control as number) ?? [] : []
    );
    const given = media.map((part) => part.type);
    if (shown.join() !== given.join()) {
      throw new TemplateError(
        "media_not_rendered",
        `The messages hold the media [${
          given.join(", ")
        }] but this model's chat template made placeholders for ` +
          `[${shown.join(", ")}]. Leave out the media that the model does not take.`,
      );
    }
  }
}

/** Whether a message is one of the system with a list of parts. */
function hasSystemParts(message: Message): boolean {
  return ["system", "developer"].includes(message?.role) && Array.isArray(message.content);
}

/** Whether a message is the result of a tool as a mapping. */
function isMappingResult(message: Message): boolean {
  const content: unknown = message?.content;
  return message?.role === "tool" && typeof content === "object" && content !== null &&
    !Array.isArray(content);
}

/** Where a checkpoint keeps its template. */
export interface ChatTemplateFiles {
  /** Text of `chat_template.jinja`, which goes first. */
  jinja?: string;
  /** Parsed `tokenizer_config.json`, whose `chat_template` is a text or a list of `{name, template}`. */
  tokenizerConfig?: unknown;
}

/** The template of a checkpoint, or undefined if it has none. `name` picks from a named list. */
export function chatTemplateSource(files: ChatTemplateFiles, name = "default"): string | undefined {
  if (files.jinja !== undefined) return files.jinja;
  const given = (files.tokenizerConfig as { chat_template?: unknown } | undefined)?.chat_template;
  if (given === undefined || given === null) return undefined;
  if (typeof given === "string") return given;
  const named = new Map<unknown, unknown>(
    Array.isArray(given) ? given.map((entry) => [entry?.name, entry?.template]) : Object.entries(given),
  );
  const chosen = named.get(name);
  if (typeof chosen === "string") return chosen;
  throw new TemplateError(
    "template_missing",
    `tokenizer_config.json has no chat template named "${name}"; it has ${
      [...named.keys()].join(", ") || "none"
    }.`,
  );
}

function parseTemplate(
  source: string,
  limits: TemplateLimits,
): [ReturnType<typeof parse>, readonly TemplateToken[]] {
  if (source.length > limits.sourceLength) {
    throw new TemplateError(
      "template_limit",
      `The chat template has ${source.length} characters; ${limits.sourceLength} are allowed (limit "sourceLength").`,
    );
  }
  // The lexer's time grows with the square of a run of white space.
  if (/\s{4097}/.test(source)) {
    throw new TemplateError("template_limit", "The chat template has more than 4096 spaces in a row.");
  }
  let tokens: ReturnType<typeof tokenize> = [];
  let furthest = 0; // index of the last token that the parser looked at
  try {
    // Jinja reads every line end as "\n".
    tokens = tokenize(source.replace(/\r\n?/g, "\n"), { lstrip_blocks: true, trim_blocks: true });
    const watched = new Proxy(tokens, {
      get(target, key) {
        const index = typeof key === "string" ? Number(key) : NaN;
        if (index > furthest) furthest = index;
        return Reflect.get(target, key);
      },
    });
    return [parse(watched), tokens];
  } catch (error) {
    throw templateError(error, tokens.length > 0 ? lineOfToken(source, tokens, furthest) : undefined);
  }
}

/** Fences the control tokens in every text of the template. */
function fenceLiterals(node: unknown, fence: (text: string) => string): void {
  const pending: unknown[] = [node];
  while (pending.length > 0) {
    const item = pending.pop();
    if (typeof item !== "object" || item === null) continue;
    const literal = item as { type?: unknown; value?: unknown };
    if (literal.type === "StringLiteral" && typeof literal.value === "string") {
      literal.value = fence(literal.value);
    } else if (item instanceof Map) { for (const entry of item) pending.push(entry); }
    else for (const value of Object.values(item)) pending.push(value);
  }
}

/** A deep copy of caller JSON with every text and key escaped. Throws InvalidArgument for what JSON cannot hold. */
function callerValue(value: unknown, path: string, depth = 0): unknown {
  if (depth > CALLER_DEPTH) {
    throw new InvalidArgument(
      `${path} is nested more than ${CALLER_DEPTH} levels deep (or contains itself).`,
    );
  }
  if (typeof value === "string") return escapeCallerText(value);
  if (value === null || typeof value === "boolean") return value;
  if (typeof value === "number" && Number.isFinite(value)) return value;
  if (Array.isArray(value)) {
    return Array.from(value, (item, i) => callerValue(item, `${path}[${i}]`, depth + 1)); // holes are refused
  }
  if (typeof value === "object" && [Object.prototype, null].includes(Object.getPrototypeOf(value))) {
    // A null prototype keeps "__proto__" an ordinary key.
    const copy: Record<string, unknown> = Object.create(null);
    for (const [key, item] of Object.entries(value)) {
      if (item !== undefined) copy[escapeCallerText(key)] = callerValue(item, `${path}.${key}`, depth + 1);
    }
    return copy;
  }
  throw new InvalidArgument(
    `${path} is ${typeof value === "object" ? "an object of a class" : describe(value)}; ` +
      `messages and tools are made of texts, finite numbers, booleans, null, lists and plain objects.`,
  );
}

/** Any failure of the engine as a TemplateError that names the line. */
function templateError(error: unknown, line: number | undefined): unknown {
  if (error instanceof MarkbaseError && !(error instanceof TemplateError)) return error;
  const at = line === undefined ? "The chat template failed" : `The chat template failed at line ${line}`;
  if (error instanceof TemplateError) return new TemplateError(error.code, `${at}: ${error.message}`);
  if (error instanceof RangeError) {
    return new TemplateError("template_limit", `${at}: it is nested too deeply or builds too long a text.`, {
      cause: error,
    });
  }
  const reason = error instanceof Error ? error.message : String(error);
  return new TemplateError("template_failed", `${at}: ${reason}`, { cause: error });
}
