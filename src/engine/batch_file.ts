/**
 * Batches in files: a request on each line of a JSONL file, and a file of replies that a later run goes on with. A reply is written
 * as soon as it is there, so nothing that was done is lost.
 */
import { requirePermission } from "../../ffi/permissions.ts";
import { InvalidArgument, MarkbaseError } from "../errors.ts";
import { DECODE_ROWS } from "../schedule/dispatches.ts";
import type { BatchRequest, ChatOptions, Model, Reply } from "./api.ts";
import { Admission, type Call, callOf } from "./batch.ts";

/** One line of the file of replies. */
export interface BatchLine {
  /** The `custom_id` of the request, or the number of its line. */
  custom_id: string;
  /** The reply; absent after an error. */
  reply?: Reply;
  /** What went wrong with this request. */
  error?: { code: string; message: string };
}

/** How a file is worked through. */
export interface BatchFileOptions {
  /** Options of requests that have none of their own. */
  common?: ChatOptions;
  /** Lines done, of how many. */
  onProgress?: (completed: number, total: number) => void;
  signal?: AbortSignal;
}

/** What came of a file. */
export interface BatchSummary {
  /** replies that an earlier run had written */ kept: number;
  /** replies of this run */ answered: number;
  /** requests that failed in this run */ failed: number;
}

/** A request that was read. */
interface Request {
  id: string;
  /** what is asked for, or why nothing can be */ call: Call | MarkbaseError;
}

/**
 * Answers every request of `input` that has no reply in `output` yet, and appends what comes of each to it. Rejects with
 * `InvalidArgument` (a file that cannot be read, an id that occurs twice), `MissingPermission` or the signal's reason.
 */
export async function batchFile(
  model: Model,
  input: string,
  output: string,
  options: BatchFileOptions = {},
): Promise<BatchSummary> {
  const { signal, onProgress } = options;
  await requirePermission({ name: "read", path: input }, "to read the requests");
  await requirePermission({ name: "read", path: output }, "to see which replies are there");
  await requirePermission({ name: "write", path: output }, "to write the replies");
  const requests = readRequests(await readText(input), input, { ...options.common, signal });
  const done = await keepReplies(output);
  const open = requests.filter(({ id }) => !done.has(id));
  const summary: BatchSummary = { kept: requests.length - open.length, answered: 0, failed: 0 };
  using file = await Deno.open(output, { append: true, create: true });
  const report = () => onProgress?.(summary.kept + summary.answered + summary.failed, requests.length);
  report();

  let writing = Promise.resolve(); // one line after another
  const write = (line: BatchLine) => {
    const bytes = new TextEncoder().encode(JSON.stringify(line) + "\n");
    return writing = writing.then(async () => {
      for (let at = 0; at < bytes.length;) at += await file.write(bytes.subarray(at));
    });
  };
  const admission = new Admission();
  let next = 0;
  const work = async () => {
    while (next < open.length) {
      signal?.throwIfAborted();
      const { id, call } = open[next++];
      try {
        if (call instanceof MarkbaseError) throw call;
        await write({ custom_id: id, reply: await admission.admit(() => call(model)) });
        summary.answered++;
      } catch (error) {
        if (!(error instanceof MarkbaseError) || error.code === "disposed") throw error;
        await write({ custom_id: id, error: { code: error.code, message: error.message } });
        summary.failed++;
      }
      report();
    }
  };
  await Promise.all(Array.from({ length: Math.min(DECODE_ROWS, open.length) }, work));
  await writing;
  return summary;
}

/** The requests of a file: objects with `messages` or `prompt`, options of their own and perhaps a `custom_id`. */
function readRequests(text: string, path: string, common: ChatOptions): Request[] {
  const requests: Request[] = [];
  const lines = new Map<string, number>();
  text.split("\n").forEach((line, i) => {
    if (line.trim() === "") return;
    const request = readRequest(line, i + 1, common);
    const earlier = lines.get(request.id);
    if (earlier !== undefined) {
      throw new InvalidArgument(
        `${path} has the custom_id "${request.id}" on lines ${earlier} and ${
          i + 1
        }; each request needs one of its own.`,
      );
    }
    lines.set(request.id, i + 1);
    requests.push(request);
  });
  return requests;
}

function readRequest(line: string, number: number, common: ChatOptions): Request {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (cause) {
    return { id: String(number), call: new InvalidArgument(`Line ${number} is not JSON: ${cause}.`) };
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return { id: String(number), call: new InvalidArgument(`Line ${number} is no JSON object.`) };
  }
  const { custom_id, messages, prompt, ...own } = value as Record<string, unknown>;
  const usable = custom_id === undefined || typeof custom_id === "string" || typeof custom_id === "number";
  const id = usable && custom_id !== undefined ? String(custom_id) : String(number);
  if (!usable) {
    return { id, call: new InvalidArgument(`Line ${number}: custom_id must be a text or a number.`) };
  }
  if ((messages === undefined) === (prompt === undefined)) {
    return { id, call: new InvalidArgument(`Line ${number} needs either messages or prompt.`) };
  }
  if ("signal" in own) {
    return { id, call: new InvalidArgument(`Line ${number}: signal is no option of a file.`) };
  }
  const request = { ...own, ...(messages === undefined ? { prompt } : { messages }) };
  return { id, call: callOf(request as BatchRequest, common, number) };
}

/** The ids that have replies in `path`; errors and a line that was cut off are removed from it, so that they are tried again. */
async function keepReplies(path: string): Promise<Set<string>> {
  const done = new Set<string>();
  let text: string;
  try {
    text = await Deno.readTextFile(path);
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return done;
    throw unreadable(path, error);
  }
  const lines = text.split("\n");
  const kept = lines.filter((line) => {
    try {
      const { custom_id, reply } = JSON.parse(line) as BatchLine;
      if (typeof custom_id !== "string" || reply === undefined) return false;
      done.add(custom_id);
      return true;
    } catch {
      return false;
    }
  });
  const whole = kept.map((line) => line + "\n").join("");
  if (lines.filter((line) => line !== "").length > 0 && kept.length === 0 && !/"custom_id"/.test(text)) {
    throw new InvalidArgument(`${path} is no file of replies; it is left alone. Name another output.`);
  }
  if (whole !== text) {
    const temporary = `${path}.${crypto.randomUUID()}.part`;
    await Deno.writeTextFile(temporary, whole);
    await Deno.rename(temporary, path);
  }
  return done;
}

async function readText(path: string): Promise<string> {
  try {
    return await Deno.readTextFile(path);
  } catch (error) {
    throw unreadable(path, error);
  }
}

function unreadable(path: string, cause: unknown): InvalidArgument {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new InvalidArgument(`${path} cannot be read: ${reason}.`, { cause });
}
