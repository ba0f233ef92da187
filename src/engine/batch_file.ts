/**
 * Batches in files: a request on each line of a JSONL file, and a file of replies that a later run goes on with. A reply is written
 * as soon as it is there, so nothing that was done is lost.
 */
import { requirePermission } from "../../ffi/permissions.ts";
import { InvalidArgument, MarkbaseError } from "../errors.ts";
import { DECODE_ROWS } from "../schedule/dispatches.ts";
import type { BatchRequest, ChatOptions, Model, Reply } from "./api.ts";
import { Admission, type Call, callOf } from "./batch.ts";
import { withoutByteOrderMark } from "../byte_order_mark.ts";

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
 * `InvalidArgument` (a file that cannot be read or that another run writes to, an id that occurs twice), `MissingPermission` or the signal's reason.
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
  await checkApart(input, output);
  const requests = readRequests(await readText(input), input, { ...options.common, signal });
  using replies = await openReplies(output);
  const { file, done } = replies;
  const open = requests.filter(({ id }) => !done.has(id));
  const summary: BatchSummary = { kept: requests.length - open.length, answered: 0, failed: 0 };
  const report = () => onProgress?.(summary.kept + summary.answered + summary.failed, requests.length);
  report();

  let writing = Promise.resolve(); // one line after another
  const write = (line: BatchLine) => {
    const bytes = new TextEncoder().encode(JSON.stringify(line) + "\n");
    return writing = writing.then(async () => {
      for (let at = 0; at < bytes.length;) {
        at += await file.write(bytes.subarray(at)).catch((cause) => {
          throw unwritable(output, cause);
        });
      }
    });
  };
  const admission = new Admission();
  let next = 0;
  const work = async () => {
    while (next < open.length) {
      signal?.throwIfAborted();
      const { id, call } = open[next++];
      let line: BatchLine;
      try {
        if (call instanceof MarkbaseError) throw call;
        const reply = await admission.admit(() => call(model));
        line = { custom_id: id, reply };
      } catch (error) {
        if (!(error instanceof MarkbaseError) || error.code === "disposed") throw error;
        line = { custom_id: id, error: { code: error.code, message: error.message } };
      }
      await write(line);
      summary[line.reply ? "answered" : "failed"]++;
      report();
    }
  };
  const one = () =>
    work().catch((error) => {
      next = open.length; // the others end with what they are at
      throw error;
    });
  const ends = await Promise.allSettled(Array.from({ length: Math.min(DECODE_ROWS, open.length) }, one));
  const failure = ends.find(({ status }) => status === "rejected") as PromiseRejectedResult | undefined;
  if (failure) throw failure.reason;
  return summary;
}

/** Requests and replies need a file each, however the two are spelled. */
async function checkApart(input: string, output: string): Promise<void> {
  const [from, to] = await Promise.all([input, output].map((path) => Deno.stat(path).catch(() => null)));
  const isOne = from !== null && to !== null && from.dev === to.dev && from.ino !== null &&
    from.ino === to.ino;
  if (isOne || input === output) {
    throw new InvalidArgument(`${output} holds the requests; the replies need a file of their own.`);
  }
}

/** The requests of a file: objects with `messages` or `prompt`, options of their own and perhaps a `custom_id`. */
function readRequests(text: string, path: string, common: ChatOptions): Request[] {
  const requests: Request[] = [];
  const lines = new Map<string, number>();
  withoutByteOrderMark(text).split("\n").forEach((line, i) => {
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

/** How every line of a file of replies begins. */
const LINE_START = '{"custom_id":';

/** A file of replies that this run alone writes to. */
interface Replies extends Disposable {
  /** open for appending */ file: Deno.FsFile;
  /** ids that have replies */ done: Set<string>;
}

/**
 * Opens `path` for this run alone. Errors and a line that was cut off are removed from it, so that they are tried again; a file that
 * holds anything else is left as it is.
 */
async function openReplies(path: string): Promise<Replies> {
  const { isFile } = await Deno.stat(path).catch(() => ({ isFile: true }));
  if (!isFile) {
    throw new InvalidArgument(`${path} is no file that replies can be kept in. Name another output.`);
  }
  using scope = new DisposableStack();
  let file = scope.use(await openFile(path));
  if (!await file.tryLock(true)) {
    throw new InvalidArgument(
      `Another run writes its replies to ${path}. Wait for its end, or name another output.`,
    );
  }
  const text = await readText(path);
  const done = new Set<string>();
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  const kept = lines.filter((line, i) => {
    const value = parsed(line);
    const { custom_id, reply, error } = value ?? {};
    if (typeof custom_id !== "string" || reply === undefined && error === undefined) {
      const isLast = i === lines.length - 1 && !text.endsWith("\n");
      const isCut = value === undefined && (line.startsWith(LINE_START) || LINE_START.startsWith(line));
      if (isLast && isCut) return false;
      throw new InvalidArgument(`${path} is no file of replies; it is left alone. Name another output.`);
    }
    if (reply !== undefined) done.add(custom_id);
    return reply !== undefined;
  });
  const whole = kept.map((line) => line + "\n").join("");
  if (whole !== text) {
    const temporary = `${path}.${crypto.randomUUID()}.part`;
    await Deno.writeTextFile(temporary, whole);
    file = scope.use(await openFile(temporary));
    await file.lock(true);
    await Deno.rename(temporary, path); // the file before stays locked too, for those who have opened it
  }
  const held = scope.move();
  return { file, done, [Symbol.dispose]: () => held.dispose() };
}

function parsed(line: string): Partial<BatchLine> | undefined {
  try {
    const value = JSON.parse(line);
    return typeof value === "object" && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

async function openFile(path: string): Promise<Deno.FsFile> {
  try {
    return await Deno.open(path, { append: true, create: true });
  } catch (cause) {
    throw unwritable(path, cause);
  }
}

function unwritable(path: string, cause: unknown): InvalidArgument {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new InvalidArgument(
    `${path} cannot be written: ${reason}. What it holds so far is kept by the next run.`,
    { cause },
  );
}

async function readText(path: string): Promise<string> {
  try {
    const { isCharDevice, isBlockDevice } = await Deno.stat(path);
    if (isCharDevice || isBlockDevice) throw new Error("it is a device without an end");
    return await Deno.readTextFile(path);
  } catch (error) {
    throw unreadable(path, error);
  }
}

function unreadable(path: string, cause: unknown): InvalidArgument {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new InvalidArgument(`${path} cannot be read: ${reason}.`, { cause });
}
