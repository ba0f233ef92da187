/** `markbase chat`: a conversation in the terminal. */
import { createInterface } from "node:readline/promises";
import process from "node:process";
import { type ContentPart, MarkbaseError, MediaError, type Message, type Model } from "../../mod.ts";
import { checkWords, describeFlags, parseFlags } from "./args.ts";
import { generationFlags, generationOptions, loadFlags, loadModel } from "./options.ts";
import { ProgressBar } from "./progress.ts";
import { harmless, style, write } from "./terminal.ts";

const flags = {
  ...loadFlags,
  ...generationFlags,
  system: { type: "string", value: "TEXT", help: "system message" },
  thinking: { type: "boolean", help: "let the model think first" },
} as const;

/** Help text of the command. */
export const help =
  `markbase chat\n\nTalks with a model. Ctrl-C stops the reply or clears the line; on an empty line it leaves. /help lists commands.\n\n${
    describeFlags(flags)
  }`;

const COMMANDS = `/help            this list
/system TEXT     start over with a system message
/image FILE      show a picture with the next question; /audio and /video alike
/detach          ask the next question without what was to go with it
/clear           start over
/undo            take back the last question and answer
/thinking on|off let the model think first
/stats           tokens and speed of the last reply
/exit            leave`;

interface Conversation {
  system: string | undefined;
  thinking: boolean;
  messages: Message[];
  /** media of the next question */ attached: ContentPart[];
  lastStatistics: string;
}

/** Runs the command with the words after its name. */
export async function chat(args: string[], signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, flags);
  checkWords(words);
  using bar = new ProgressBar();
  await using model = await loadModel(values, bar, signal);
  const options = generationOptions(values);
  const conversation: Conversation = {
    system: values.system,
    thinking: values.thinking ?? false,
    messages: [],
    attached: [],
    lastStatistics: "No reply yet.",
  };
  const terminal = createInterface({
    input: process.stdin,
    output: process.stdout,
    terminal: Deno.stdin.isTerminal(),
  });
  const prompt = style("> ", "cyan");
  terminal.setPrompt(prompt);
  let reply: AbortController | null = null;
  const interrupt = () => {
    if (reply) reply.abort(new DOMException("Stopped.", "AbortError"));
    else if (terminal.line) terminal.write(null, { ctrl: true, name: "u" }); // clears what was typed
    else terminal.close();
  };
  terminal.on("SIGINT", interrupt);
  // Piped input may end while a reply runs; the lines that came before are still answered.
  let ended = false;
  terminal.on("close", () => ended = true);
  let asks = false;
  const ask = () => {
    asks = !ended;
    if (asks) terminal.prompt();
  };
  Deno.addSignalListener("SIGINT", interrupt);
  try {
    ask();
    for await (const line of terminal) {
      asks = false;
      const text = line.trim();
      if (text === "/exit" || text === "/quit") break;
      if (text.startsWith("/")) await write(Deno.stdout, command(text, conversation) + "\n");
      else if (text !== "") {
        reply = new AbortController();
        await answer(model, conversation, text, { ...options, signal: reply.signal });
        reply = null;
      }
      ask();
    }
    if (asks) await write(Deno.stdout, "\n"); // what comes next, a shell's prompt say, has a line of its own
  } finally {
    Deno.removeSignalListener("SIGINT", interrupt);
    terminal.close();
  }
}

/** Executes a `/` command and returns what to print. */
export function command(text: string, conversation: Conversation): string {
  const [name] = text.split(/\s/, 1);
  const argument = text.slice(name.length).trim();
  switch (name) {
    case "/help":
      return COMMANDS;
    case "/image":
    case "/audio":
    case "/video": {
      if (argument === "") return `Write ${name} and a path or URL.`;
      const type = name.slice(1) as "image" | "audio" | "video";
      conversation.attached.push({ type, [type]: asTyped(argument) } as ContentPart);
      return attachments(conversation);
    }
    case "/detach":
      conversation.attached = [];
      return "The next question goes without media.";
    case "/clear":
      conversation.messages = [];
      conversation.attached = [];
      return "A new conversation.";
    case "/system":
      conversation.system = argument === "" ? undefined : argument;
      conversation.messages = [];
      return argument === "" ? "No system message." : `System message: ${argument}`;
    case "/undo": {
      const last = conversation.messages.findLastIndex((message) => message.role === "user");
      if (last < 0) return "Nothing to take back.";
      conversation.messages.length = last;
      return "Took back the last question.";
    }
    case "/thinking":
      if (argument !== "on" && argument !== "off") return "Write /thinking on or /thinking off.";
      conversation.thinking = argument === "on";
      return `Thinking is ${argument}.`;
    case "/stats":
      return conversation.lastStatistics;
    default:
      return `Unknown command ${name}. /help lists them.`;
  }
}

/** A path without the quotes or backslashes that terminals put in when a file is dropped on them. */
function asTyped(argument: string): string {
  const quoted = /^(['"])(.*)\1$/s.exec(argument);
  if (quoted !== null) return quoted[2];
  return Deno.build.os === "windows" ? argument : argument.replace(/\\([^A-Za-z0-9])/g, "$1");
}

/** Attaches the media of a question that failed again, unless they are why: then every question would fail. */
function again(conversation: Conversation, parts: ContentPart[], isMediaAtFault: boolean): string {
  if (isMediaAtFault) return "The next question goes without media; name again what should go with it.\n";
  conversation.attached = parts;
  return `${attachments(conversation)} /detach leaves that out.\n`;
}

function attachments({ attached }: Conversation): string {
  return `The next question goes with ${attached.map((part) => part.type).join(", ")}.`;
}

async function answer(
  model: Model,
  conversation: Conversation,
  text: string,
  options: Parameters<Model["stream"]>[1],
): Promise<void> {
  const parts = conversation.attached;
  conversation.attached = [];
  const question: Message = {
    role: "user",
    content: parts.length === 0 ? text : [...parts, { type: "text", text }],
  };
  const messages: Message[] = [
    ...(conversation.system === undefined ? [] : [{ role: "system" as const, content: conversation.system }]),
    ...conversation.messages,
    question,
  ];
  const started = performance.now();
  let said = "";
  let failure = "";
  let isMediaAtFault = false;
  let isThinking = false;
  try {
    for await (const part of model.stream(messages, { ...options, thinking: conversation.thinking })) {
      if (isThinking && part.type === "text") await write(Deno.stdout, "\n"); // its colour alone may not tell them apart
      isThinking = part.type === "thinking";
      if (part.type === "thinking") await write(Deno.stdout, style(harmless(part.text), "dim"));
      else if (part.type === "text") {
        said += part.text;
        await write(Deno.stdout, harmless(part.text));
      } else if (part.type === "done") {
        const { usage, warnings } = part.reply;
        const seconds = (performance.now() - started) / 1000;
        conversation.lastStatistics =
          `${usage.promptTokens} prompt tokens, ${usage.completionTokens} generated in ${
            seconds.toFixed(2)
          } s`;
        for (const warning of warnings) {
          await write(Deno.stderr, style(`\nwarning: ${warning.message}`, "yellow"));
        }
      }
    }
  } catch (error) {
    if (options?.signal?.aborted) await write(Deno.stdout, style(" [stopped]", "dim"));
    else if (error instanceof MarkbaseError) {
      failure = error.message;
      isMediaAtFault = error instanceof MediaError;
    } else throw error;
  }
  await write(Deno.stdout, "\n");
  if (failure !== "") {
    // The conversation goes on without the question: it can be asked again with its media, shorter or after /clear.
    await write(
      Deno.stderr,
      `error: ${failure}\n${parts.length === 0 ? "" : again(conversation, parts, isMediaAtFault)}`,
    );
    return;
  }
  // A stopped reply stays in the conversation as far as it went, so that the model sees what the person saw.
  conversation.messages.push(question, { role: "assistant", content: said });
}
