/**
 * Requests to the hub: redirects by hand, so that the token stays with the hub's own host; several attempts where the
 * failure may pass; failures as errors that say what to do.
 */
import { requirePermission } from "../../ffi/permissions.ts";
import { HubError } from "../errors.ts";
import type { HubSettings } from "./settings.ts";

/** Sleeps for milliseconds; rejects with the signal's reason. */
export type Wait = (milliseconds: number, signal: AbortSignal | undefined) => Promise<void>;

/** What all work with the hub shares. */
export interface HubContext {
  settings: HubSettings;
  signal: AbortSignal | undefined;
  /** sleeps for milliseconds; rejects with the signal's reason */ wait: Wait;
  /** milliseconds without a byte after which a connection counts as lost */ stallMilliseconds: number;
  /** attempts in all, and after a transfer that brought nothing */ attempts: number;
  /** bytes that may still be written below a folder; null where that cannot be known */
  freeBytes: (folder: string) => Promise<number | null>;
}

/** An answer, and what the hub itself said before it sent the request to another host. */
export interface Answer {
  response: Response;
  /** of the last answer that came from the hub's host */ hub: Headers;
}

/** One request. */
export interface RequestOptions {
  method?: "GET" | "HEAD";
  headers?: Record<string, string>;
  /** do not follow a redirect to another host */ stay?: boolean;
  /** aborts this request alone */ signal?: AbortSignal;
  /** what is asked for, as in "The file x of y", for messages */ what: string;
}

const MAX_REDIRECTS = 8;
/** Longest that a `Retry-After` is obeyed. */
const MAX_WAIT_MS = 5 * 60_000;
const PASSING = [408, 425, 429, 500, 502, 503, 504];
const REDIRECTS = [301, 302, 303, 307, 308];
const MAX_JSON_BYTES = 64 * 2 ** 20;

/** A failure that another attempt may not meet. */
export class Passing extends Error {
  /** `wait` is what the server asked for in milliseconds; `error` is what to throw after the last attempt. */
  constructor(readonly error: HubError, readonly wait: number | undefined) {
    super(error.message);
  }
}

/** Asks once; answers other than success throw `HubError`, or `Passing` where it is worth another attempt. */
export async function ask(context: HubContext, url: URL, options: RequestOptions): Promise<Answer> {
  const answer = await follow(context, url, options);
  const { response } = answer;
  if (response.ok || response.status === 416 || options.stay && REDIRECTS.includes(response.status)) {
    return answer;
  }
  await response.body?.cancel();
  const error = statusError(response, answer.hub, context.settings, options.what);
  if (PASSING.includes(response.status)) throw new Passing(error, askedToWait(response.headers));
  throw error;
}

/** Repeats `attempt` after passing failures, each time after a longer pause. `attempt` gets its number from 0. */
export async function persist<T>(context: HubContext, attempt: (number: number) => Promise<T>): Promise<T> {
  for (let number = 0;; number++) {
    try {
      return await attempt(number);
    } catch (error) {
      context.signal?.throwIfAborted();
      if (!(error instanceof Passing)) throw error;
      if (number + 1 >= context.attempts) throw error.error;
      await pause(context, number, error);
    }
  }
}

/** Waits before the next attempt. Throws the failure's error if the server asks for too long a pause. */
export async function pause(context: HubContext, number: number, failure: Passing): Promise<void> {
  if (failure.wait !== undefined && failure.wait > MAX_WAIT_MS) {
    throw new HubError(
      failure.error.code,
      `${failure.error.message} The server asks to wait ${Math.ceil(failure.wait / 1000)} seconds.`,
    );
  }
  const usual = Math.min(8000, 500 * 2 ** number) * (0.5 + Math.random() / 2);
  await context.wait(Math.max(failure.wait ?? 0, usual), context.signal);
}

/** Fetches JSON, with several attempts. */
export async function fetchJson(context: HubContext, url: URL, what: string): Promise<unknown> {
  return await persist(context, async () => {
    const { response } = await ask(context, url, { what, headers: { accept: "application/json" } });
    let text = "";
    const decoder = new TextDecoder();
    for await (const chunk of chunks(context, response, what)) {
      text += decoder.decode(chunk, { stream: true });
      if (text.length > MAX_JSON_BYTES) {
        throw new HubError(
          "invalid_answer",
          `${what}: ${url.href} answers with more than ${MAX_JSON_BYTES} bytes.`,
        );
      }
    }
    try {
      return JSON.parse(text + decoder.decode());
    } catch (cause) {
      const error = new HubError(
        "invalid_answer",
        `${what}: ${url.href} does not answer with JSON. Try again.`,
        {
          cause,
        },
      );
      throw new Passing(error, undefined);
    }
  });
}

/** The chunks of a body. A connection that breaks, or is silent for too long, throws `Passing`. */
export async function* chunks(
  context: HubContext,
  response: Response,
  what: string,
): AsyncGenerator<Uint8Array, void, undefined> {
  if (response.body === null) return;
  const reader = response.body.getReader();
  const { signal } = context;
  const stop = () => void reader.cancel(signal!.reason).catch(() => {});
  signal?.addEventListener("abort", stop, { once: true });
  try {
    for (;;) {
      signal?.throwIfAborted();
      const { done, value } = await beforeStall(context, reader.read());
      signal?.throwIfAborted();
      if (done) return;
      yield value;
    }
  } catch (cause) {
    signal?.throwIfAborted();
    if (cause instanceof HubError) throw cause;
    throw lost(what, cause);
  } finally {
    signal?.removeEventListener("abort", stop);
    await reader.cancel().catch(() => {});
  }
}

async function beforeStall<T>(context: HubContext, work: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const stalled = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`no byte came for ${context.stallMilliseconds / 1000} seconds`)),
      context.stallMilliseconds,
    );
  });
  try {
    return await Promise.race([work, stalled]);
  } finally {
    clearTimeout(timer);
  }
}

async function follow(context: HubContext, url: URL, options: RequestOptions): Promise<Answer> {
  const { settings: { endpoint, token }, signal } = context;
  let target = url;
  let atHub = true;
  let hub = new Headers();
  for (let hop = 0; hop <= MAX_REDIRECTS; hop++) {
    atHub &&= target.origin === endpoint.origin;
    await requirePermission({ name: "net", host: target.host }, netPurpose(options.what));
    // Compressed answers would have other lengths than the ranges and sizes speak of.
    const headers: Record<string, string> = { "accept-encoding": "identity", ...options.headers };
    if (atHub && token !== undefined) headers.authorization = `Bearer ${token}`;
    const response = await send(context, target, options, headers);
    signal?.throwIfAborted();
    if (atHub) hub = response.headers;
    const location = response.headers.get("location");
    if (!REDIRECTS.includes(response.status) || location === null) return { response, hub };
    const next = URL.canParse(location, target) ? new URL(location, target) : null;
    if (options.stay && next?.origin !== endpoint.origin) return { response, hub };
    await response.body?.cancel();
    const downgrade = target.protocol === "https:" && next?.protocol !== "https:";
    if (next === null || !/^https?:$/.test(next.protocol) || downgrade) {
      throw new HubError(
        "fetch_failed",
        `${options.what}: ${target.host} redirects to ${location}. It is refused.`,
      );
    }
    target = next;
  }
  throw new HubError(
    "fetch_failed",
    `${options.what}: more than ${MAX_REDIRECTS} redirects from ${url.href}.`,
  );
}

async function send(
  context: HubContext,
  target: URL,
  { method, what }: RequestOptions,
  headers: Record<string, string>,
): Promise<Response> {
  const late = new AbortController();
  const timer = setTimeout(
    () => late.abort(new Error(`no answer came for ${context.stallMilliseconds / 1000} seconds`)),
    context.stallMilliseconds,
  );
  try {
    const signal = context.signal ? AbortSignal.any([context.signal, late.signal]) : late.signal;
    return await fetch(target, { method: method ?? "GET", headers, redirect: "manual", signal });
  } catch (cause) {
    context.signal?.throwIfAborted();
    throw lost(`${what} (${target.host})`, cause);
  } finally {
    clearTimeout(timer);
  }
}

/** The connection failed. */
function lost(what: string, cause: unknown): Passing {
  const reason = (cause instanceof Error ? cause.message : String(cause)).replace(/\.$/, "");
  return new Passing(
    new HubError(
      "unreachable",
      `${what} cannot be fetched: ${reason}. Check the network and try again; what has come is kept.`,
      { cause },
    ),
    undefined,
  );
}

function netPurpose(what: string): string {
  return `for this: ${what} (or set HF_HUB_OFFLINE=1 to use only what the cache has)`;
}

/** Milliseconds until the server wants to be asked again. */
function askedToWait(headers: Headers): number | undefined {
  const text = headers.get("retry-after") ?? /;\s*t=(\d+)/.exec(headers.get("ratelimit") ?? "")?.[1];
  if (text === undefined) return undefined;
  if (/^\d+(\.\d+)?$/.test(text)) return Number(text) * 1000;
  const date = Date.parse(text);
  return Number.isNaN(date) ? undefined : Math.max(0, date - Date.now());
}

function statusError(response: Response, hub: Headers, settings: HubSettings, what: string): HubError {
  const { status } = response;
  const code = hub.get("x-error-code");
  const { endpoint, token } = settings;
  const account = token === undefined
    ? "No token was sent: set HF_TOKEN, or log in with the hub's Python client"
    : "The token that was sent does not reach it: use one of an account that may read it";
  if (code === "GatedRepo") {
    return new HubError(
      "gated",
      `${what}: its owner gives access on request. Ask for it on the model's page at ${endpoint.host}, then try again. ${account}.`,
    );
  }
  if (code === "RevisionNotFound") {
    return new HubError(
      "revision_not_found",
      `${what}: there is no such revision. A revision is a branch, tag or commit; a file is written as org/name/FILE.`,
    );
  }
  if (code === "EntryNotFound") return new HubError("file_not_found", `${what}: there is no such file.`);
  // The hub does not tell private repositories from missing ones, and answers 401 for both.
  if (code === "RepoNotFound" || status === 404) {
    return new HubError(
      "repository_not_found",
      `${what}: there is no such repository, or it is private. ${account}.`,
    );
  }
  if (status === 401) {
    return new HubError("unauthorized", `${what}: the hub wants a valid token (HTTP 401). ${account}.`);
  }
  if (status === 403) {
    const said = hub.get("x-error-message");
    return new HubError(
      "forbidden",
      `${what}: access is refused (HTTP 403${said ? `, "${said}"` : ""}). ${account}.`,
    );
  }
  if (status === 429) {
    return new HubError(
      "rate_limited",
      `${what}: too many requests (HTTP 429). Wait a while${token === undefined ? ", or set HF_TOKEN" : ""}.`,
    );
  }
  return new HubError(
    status >= 500 ? "unavailable" : "fetch_failed",
    `${what} cannot be fetched: HTTP status ${status}. Try again later.`,
  );
}
