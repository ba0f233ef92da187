/** Chat messages and tools as callers give them, their checks, and their preparation for a template. */

import { describe } from "../arguments.ts";
import { InvalidArgument } from "../errors.ts";
import type { AudioInput, ImageInput, VideoInput } from "../media/inputs.ts";
import type { Warning } from "../warning.ts";
import { embedMappingResults, toolCallsForTemplate } from "./tool_history.ts";

/** A part of a message. Media are paths, URLs, Blobs, bytes, or raw pixels or samples. */
export type ContentPart =
  | { type: "text"; text: string }
  | { type: "image"; image: ImageInput }
  | { type: "audio"; audio: AudioInput }
  | { type: "video"; video: VideoInput };

/** A call that a model made. */
export interface ToolCall {
  /** Names the call among those of one reply; a tool message refers to it. */
  id: string;
  /** The function. */
  name: string;
  /** Its arguments. */
  arguments: Record<string, unknown>;
}

/** A call in the shape of OpenAI's API; `arguments` is a mapping or its JSON text. */
export interface OpenAIToolCall {
  /** As in {@link ToolCall}. */
  id?: string;
  /** Always "function". */
  type?: "function";
  /** Name and arguments. */
  function: { name: string; arguments: Record<string, unknown> | string };
}

/** One message of a conversation. Further JSON fields reach the template as they are. */
export interface Message {
  /** Who speaks; `developer` counts as `system`, `tool` is the result of a call. */
  role: "system" | "developer" | "user" | "assistant" | "tool";
  /** Text, parts, or a mapping as the result of a tool; may be null in an assistant message. */
  content?: string | ContentPart[] | Record<string, unknown> | null;
  /** Thoughts of an assistant message; most templates show them only next to tool calls of the running turn. */
  thinking?: string;
  /** Calls of an assistant message, as a reply returns them. */
  toolCalls?: ToolCall[];
  /** The same in the shape of OpenAI's API. */
  tool_calls?: OpenAIToolCall[];
  /** Which call a tool message answers. */
  toolCallId?: string;
  /** The same in the shape of OpenAI's API. */
  tool_call_id?: string;
  /** The function that a tool message answers for; found by the call's id if absent. */
  name?: string;
  /** Anything else that the checkpoint's template reads. */
  [field: string]: unknown;
}

/** A function that the model may call. */
export interface Tool {
  /** Always "function". */
  type: "function";
  /** What the model is told. */
  function: {
    /** Name, as the model will write it. */
    name: string;
    /** What it does. */
    description?: string;
    /** JSON schema of the arguments. */
    parameters?: Record<string, unknown>;
    /** Anything else that the checkpoint's template reads, such as `response`. */
    [field: string]: unknown;
  };
}

/** Messages as the template gets them (before escaping), with their media in order. */
export interface PreparedMessages {
  /** Plain JSON values. */
  messages: Record<string, unknown>[];
  /** Image, audio and video parts in the order of the messages. */
  media: ContentPart[];
  /** Fields that the template alone can make something of, each with where it stands. */
  furtherFields: { field: string; where: string }[];
  /** What was changed. */
  warnings: Warning[];
}

const ROLES = ["system", "developer", "user", "assistant", "tool"];
const MEDIA = ["image", "audio", "video"];
/** Parts of OpenAI's API, and what stands for each here. */
const OPENAI_PARTS = new Map<string, string>([
  ["image_url", "image"],
  ["input_image", "image"],
  ["input_audio", "audio"],
  ["video_url", "video"],
]);
/** Fields that are translated; all others are handed on. */
const OWN_FIELDS = new Set([
  "role",
  "content",
  "thinking",
  "toolCalls",
  "tool_calls",
  "toolCallId",
  "tool_call_id",
  "name",
]);

/** What a model and its template make of messages. */
export interface MessageTraits {
  /** the vocabulary has thinking channels */ channels: boolean;
  /** the template goes through the parts of system messages */ systemParts: boolean;
  /** the template reads results of tools from the message that has the calls, too */ toolResponses: boolean;
}

/** Checks messages and brings them into the shape that templates read. Throws InvalidArgument that names the message. */
export function prepareMessages(
  messages: readonly Message[],
  { channels, systemParts, toolResponses }: MessageTraits,
): PreparedMessages {
  if (!Array.isArray(messages) || messages.length === 0) {
    throw new InvalidArgument(
      'There are no messages. Pass at least one, such as {role: "user", content: "…"}.',
    );
  }
  const prepared: Record<string, unknown>[] = [];
  const media: ContentPart[] = [];
  const warnings: Warning[] = [];
  const furtherFields: PreparedMessages["furtherFields"] = [];
  // Holes of a list have their turns too, and are refused as undefined.
  Array.from(messages).forEach((message, i) => {
    const where = `Message ${i}`;
    if (typeof message !== "object" || message === null || !ROLES.includes(message.role)) {
      throw new InvalidArgument(
        `${where} has the role ${describe(message?.role)}. Use one of ${ROLES.join(", ")}.`,
      );
    }
    const out: Record<string, unknown> = { role: message.role };
    for (const [field, value] of Object.entries(message)) {
      if (OWN_FIELDS.has(field) || value === undefined) continue;
      out[field] = value;
      if (!isEmpty(value)) furtherFields.push({ field, where });
    }
    const content = prepareContent(message, where, media, systemParts);
    warnings.push(...ignoredOfParts(message, where));
    if (content !== undefined) {
      out.content = message.role === "assistant" && channels ? withoutChannels(content) : content;
    }
    if (message.name !== undefined && message.name !== null) out.name = text(message.name, `${where}: name`);
    if (message.thinking !== undefined && message.thinking !== null && message.thinking !== "") {
      out.thinking = text(message.thinking, `${where}: thinking`);
      out.reasoning_content ??= out.thinking; // the name that Gemma's own templates read
    }
    Object.assign(out, toolCallsForTemplate(message, prepared, where, warnings));
    prepared.push(out);
  });
  return {
    messages: toolResponses ? embedMappingResults(prepared) : prepared,
    media,
    furtherFields,
    warnings,
  };
}

/** The warning about a field that changes nothing. */
export function ignoredField(field: string, where: string): Warning {
  return {
    code: "field_ignored",
    message: `${where}: its field ${
      describe(field)
    } is ignored, since the chat template names no such field.`,
  };
}

/** What parts hold beside their type and what that names. */
function ignoredOfParts({ content }: Message, where: string): Warning[] {
  if (!Array.isArray(content)) return [];
  return content.flatMap((part, j) =>
    Object.entries(part)
      .filter(([field, value]) => field !== "type" && field !== part.type && !isEmpty(value))
      .map(([field]) => ignoredField(field, `${where}, part ${j}`))
  );
}

/** Whether a value says nothing, as the fields that an API fills in for completeness. */
function isEmpty(value: unknown): boolean {
  return value === undefined || value === null || value === "" || Array.isArray(value) && value.length === 0;
}

/** Checks tool declarations. Throws InvalidArgument that names the tool. */
export function prepareTools(tools: readonly Tool[]): Tool[] {
  if (!Array.isArray(tools)) {
    throw new InvalidArgument("tools is not a list. Pass a list of function declarations.");
  }
  Array.from(tools).forEach((tool, i) => {
    if (typeof tool !== "object" || tool === null || tool.type !== "function") {
      throw new InvalidArgument(`Tool ${i} has the type ${describe(tool?.type)}. Use "function".`);
    }
    const name = tool.function?.name;
    if (typeof name !== "string" || name === "") {
      throw new InvalidArgument(`Tool ${i} has no name. Give function.name a text.`);
    }
    const { description, parameters } = tool.function;
    if (description !== undefined && description !== null) {
      text(description, `Tool ${describe(name)}: description`);
    }
    if (
      parameters !== undefined && parameters !== null &&
      (typeof parameters !== "object" || Array.isArray(parameters))
    ) {
      throw new InvalidArgument(`Tool ${describe(name)}: parameters is not a JSON schema object.`);
    }
    const properties = parameters?.properties ?? {};
    if (typeof properties !== "object" || Array.isArray(properties)) {
      throw new InvalidArgument(
        `Tool ${describe(name)}: parameters.properties is ${describe(properties)}; ` +
          `it must be an object from names to JSON schemas.`,
      );
    }
  });
  return tools.slice();
}

/** Content for the template: text, parts, a mapping (tool results), null, or undefined where there is none. */
function prepareContent(
  message: Message,
  where: string,
  media: ContentPart[],
  systemParts: boolean,
): unknown {
  const { content, role } = message;
  if (content === null || content === undefined) {
    if (role === "assistant") return content;
    throw new InvalidArgument(`${where} (${role}) has no content. Give it a text or a list of parts.`);
  }
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) {
    if (role === "tool" && typeof content === "object") return content;
    throw new InvalidArgument(`${where}: content is ${describe(content)}. Use a text or a list of parts.`);
  }
  const parts = Array.from(content, (part: ContentPart, j) => {
    const type = part?.type;
    if (type === "text") return { type, text: text(part.text, `${where}: text of part ${j}`) };
    if (MEDIA.includes(type)) {
      if (role !== "user" && role !== "assistant") {
        throw new InvalidArgument(
          `${where} (${role}) has a part of type "${type}". Put media into user messages.`,
        );
      }
      media.push(part);
      return { type };
    }
    const own = OPENAI_PARTS.get(type);
    const hint = own === undefined ? "" : ` Write {type: "${own}", ${own}: …} with a path, URL or bytes.`;
    throw new InvalidArgument(
      `${where}: part ${j} has the type ${describe(type)}. Use one of text, ${MEDIA.join(", ")}.${hint}`,
    );
  });
  if (role === "user" || role === "assistant" || role !== "tool" && systemParts) return parts;
  // Such a template prints the list as Python does ("[{'type': …}]").
  return joinTexts(parts);
}

type TemplatePart = { type: string; text?: string };

function joinTexts(parts: TemplatePart[]): string {
  return parts.map((part) => part.text ?? "").join("");
}

const CHANNEL_START = "<|channel>";
const CHANNEL_END = "<channel|>";

/** Content of an assistant message without the thinking channels that it spells. */
function withoutChannels(content: unknown): unknown {
  if (typeof content === "string") return dropChannels(content);
  if (!Array.isArray(content)) return content;
  const parts = content as TemplatePart[];
  const whole = joinTexts(parts);
  if (!whole.includes(CHANNEL_START) && !whole.includes(CHANNEL_END)) return parts;
  // A channel may begin in one part and end in another, so the texts are joined first.
  const media = parts.filter((part) => part.type !== "text");
  return media.length === 0
    ? dropChannels(whole)
    : parts.map((part) => part.type === "text" ? { type: "text", text: dropChannels(part.text!) } : part);
}

/** As Gemma's templates strip it: each piece before a channel end loses what follows its channel start. */
function dropChannels(content: string): string {
  return content.split(CHANNEL_END).map((piece) => piece.split(CHANNEL_START, 1)[0]).join("");
}

function text(value: unknown, what: string): string {
  if (typeof value === "string") return value;
  throw new InvalidArgument(`${what} is ${describe(value)}, not a text.`);
}
