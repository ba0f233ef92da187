/** Tool calls and tool results of earlier turns: both spellings, checked, in the shape that templates read. */

import { InvalidArgument } from "../errors.ts";
import type { Warning } from "../warning.ts";
import type { Message } from "./messages.ts";

/** A call as templates read it. */
interface TemplateCall {
  id?: string;
  type: "function";
  function: { name: string; arguments: unknown };
}

/** The fields about tools of one message; `earlier` are the prepared messages before it. */
export function toolCallsForTemplate(
  message: Message,
  earlier: readonly Record<string, unknown>[],
  where: string,
  warnings: Warning[],
): Record<string, unknown> {
  const calls = templateCalls(message, where, warnings);
  if (calls !== undefined && message.role !== "assistant") {
    throw new InvalidArgument(
      `${where} (${message.role}) has tool calls. Only assistant messages may have them.`,
    );
  }
  if (message.role === "tool") return toolResultFields(message, earlier, where);
  return calls === undefined ? {} : { tool_calls: calls };
}

/**
 * Results of tools that are mappings become a field of the message with the calls, and so do those beside them: of messages of
 * their own, templates that know the field take texts alone, and fail on mappings or leave them out.
 */
export function embedMappingResults(messages: readonly Record<string, unknown>[]): Record<string, unknown>[] {
  const result: Record<string, unknown>[] = [];
  for (let at = 0; at < messages.length;) {
    const message = messages[at++];
    result.push(message);
    if (message.role === "tool") continue;
    let end = at;
    while (messages[end]?.role === "tool") end++;
    const run = messages.slice(at, end);
    if (!run.some(({ content }) => typeof content === "object")) continue;
    const responses = run.map(({ name, content }) => ({ name, response: content }));
    result[result.length - 1] = { ...message, tool_responses: responses };
    at = end;
  }
  return result;
}

function templateCalls(message: Message, where: string, warnings: Warning[]): TemplateCall[] | undefined {
  const own = message.toolCalls ?? undefined;
  const openai = message.tool_calls ?? undefined;
  if (own === undefined && openai === undefined) return undefined;
  if (own !== undefined && openai !== undefined) {
    throw new InvalidArgument(`${where} has both toolCalls and tool_calls. Give one of them.`);
  }
  const list: unknown = own ?? openai;
  if (!Array.isArray(list)) throw new InvalidArgument(`${where}: its tool calls are not a list.`);
  return list.map((call, i) => {
    const body = own !== undefined ? call : call?.function;
    if (typeof body?.name !== "string" || body.name === "") {
      throw new InvalidArgument(`${where}: tool call ${i} has no function name.`);
    }
    if (call.id !== undefined && call.id !== null && typeof call.id !== "string") {
      throw new InvalidArgument(`${where}: the id of tool call ${i} is not a text.`);
    }
    const out: TemplateCall = {
      type: "function",
      function: {
        name: body.name,
        arguments: callArguments(body.arguments, `${where}: tool call ${i}`, warnings),
      },
    };
    if (typeof call.id === "string") out.id = call.id;
    return out;
  });
}

/** Arguments as a mapping; JSON text of a mapping is parsed, other text is kept and reported. */
function callArguments(value: unknown, what: string, warnings: Warning[]): unknown {
  if (value === undefined || value === null || value === "") return {};
  if (typeof value === "object" && !Array.isArray(value)) return value;
  if (typeof value !== "string") {
    throw new InvalidArgument(`${what}: its arguments are neither a mapping nor JSON text.`);
  }
  try {
    const parsed: unknown = JSON.parse(value);
    if (typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)) return parsed;
  } catch {
    // reported below
  }
  warnings.push({
    code: "tool_arguments_not_json",
    message:
      `${what}: its arguments are not the JSON text of an object; they went into the prompt as plain text.`,
  });
  return value;
}

/** Finds the call that a tool message answers, by id, else by position among the results after one turn. */
function toolResultFields(
  message: Message,
  earlier: readonly Record<string, unknown>[],
  where: string,
): Record<string, unknown> {
  const id = message.toolCallId ?? message.tool_call_id;
  if (id !== undefined && id !== null && typeof id !== "string") {
    throw new InvalidArgument(`${where}: its tool call id is not a text.`);
  }
  let position = 0;
  let asker = earlier.length - 1;
  for (; asker >= 0 && earlier[asker].role === "tool"; asker--) position++;
  const calls = (earlier[asker]?.tool_calls ?? []) as TemplateCall[];
  if (calls.length === 0) {
    throw new InvalidArgument(
      `${where} is the result of a tool, but no assistant message with tool calls stands before it.`,
    );
  }
  const named = id === undefined || id === null ? undefined : calls.find((call) => call.id === id);
  const name = message.name ?? named?.function.name;
  if (id !== undefined && id !== null) {
    if (name === undefined && calls.some((call) => call.id !== undefined)) {
      const known = calls.map((call) => JSON.stringify(call.id ?? "")).join(", ");
      throw new InvalidArgument(
        `${where} answers the call ${JSON.stringify(id)}; the calls before it are ${known}.`,
      );
    }
    return { tool_call_id: id, ...nameField(name ?? calls[position]?.function.name, where) };
  }
  const call = calls[position];
  const fields = nameField(name ?? call?.function.name, where);
  const fitsPosition = call?.id !== undefined && call.function.name === fields.name;
  return fitsPosition ? { tool_call_id: call.id, ...fields } : fields;
}

function nameField(name: string | undefined, where: string): { name: string } {
  if (typeof name === "string" && name !== "") return { name };
  throw new InvalidArgument(`${where} does not say which tool it is the result of. Give toolCallId or name.`);
}
