/** Bytes of a media source, wherever it is, within a limit and with the script's own permissions. */
import { unlessAborted } from "../abort.ts";
import { pathOfFileUrl } from "../file_url.ts";
import { requirePermission } from "../../ffi/permissions.ts";
import { InvalidArgument, MarkbaseError, MediaError } from "../errors.ts";
import type { MediaSource } from "./inputs.ts";

/** How to read. */
export interface ReadOptions {
  /** Bytes at most. */
  limit: number;
  /** Ends the work. */
  signal?: AbortSignal;
  /** Of a longer file the first bytes, instead of an error. */
  head?: boolean;
}

const HEAD_BYTES = 65_536;
/** What the permission to read a path is for. */
const READING = "to read the media file";
const MAX_REDIRECTS = 10;
/** Characters of a path; systems know none of more bytes. */
const MOST_PATH = 4096;

/** Whether a value is one of the forms of a media file. */
export function isMediaSource(value: unknown): value is MediaSource {
  return typeof value === "string" || value instanceof URL || value instanceof Blob ||
    value instanceof Uint8Array || value instanceof ArrayBuffer;
}

/**
 * All bytes of a source. Rejects with `MediaError` (`media_missing`, `media_unreadable`, `media_too_large`, `media_empty`),
 * `MissingPermission`, `InvalidArgument` or the signal's reason.
 */
export async function readSource(
  source: MediaSource,
  options: ReadOptions,
): Promise<Uint8Array<ArrayBuffer>> {
  options.signal?.throwIfAborted();
  const bytes = await readAny(source, options);
  if (bytes.length === 0) throw new MediaError("media_empty", `${describeSource(source)} is empty.`);
  return bytes;
}

/** The first bytes of a regular file or of bytes, enough to tell their format. Rejects as `readSource`. */
export async function readHead(
  source: string | Uint8Array<ArrayBuffer>,
  signal: AbortSignal | undefined,
): Promise<Uint8Array<ArrayBuffer>> {
  if (typeof source !== "string") return source.subarray(0, HEAD_BYTES);
  const bytes = await readPath(source, { limit: HEAD_BYTES, signal, head: true });
  if (bytes.length === 0) throw new MediaError("media_empty", `${describeSource(source)} is empty.`);
  return bytes;
}

/**
 * The path of a source that can be read several times: a regular file, or one that does not exist. Undefined for all others, pipes
 * among them. Rejects with `MissingPermission`.
 */
export async function regularPath(source: MediaSource): Promise<string | undefined> {
  const path = pathOf(source);
  if (path === undefined || path === "" || path.length > MOST_PATH || path.includes("\0")) return undefined;
  await requirePermission({ name: "read", path }, READING);
  try {
    return (await Deno.stat(path)).isFile ? path : undefined;
  } catch {
    return path; // whoever reads it will say why it cannot be read
  }
}

/** A source in an error message, short. */
export function describeSource(source: MediaSource): string {
  const text = source instanceof URL ? source.href : source;
  if (typeof text === "string") return text.length > 100 ? `${text.slice(0, 97)}…` : text || '""';
  return text instanceof Blob ? "The Blob" : "The media file";
}

/** The path of a source that is a file of this machine, else undefined. */
export function pathOf(source: MediaSource): string | undefined {
  if (source instanceof URL) return source.protocol === "file:" ? pathOfUrl(source) : undefined;
  if (typeof source !== "string") return undefined;
  const url = urlOf(source);
  return url === undefined ? source : pathOf(url);
}

async function readAny(source: MediaSource, options: ReadOptions): Promise<Uint8Array<ArrayBuffer>> {
  const buffer = source instanceof Uint8Array ? source.buffer : source;
  if (buffer instanceof ArrayBuffer && buffer.detached) {
    throw new InvalidArgument("The bytes of the media file were handed over to somebody else. Pass a copy.");
  }
  if (source instanceof Uint8Array) {
    checkSize(source.length, source, options.limit);
    return source.slice(); // the caller may change its bytes meanwhile
  }
  if (source instanceof ArrayBuffer) return await readAny(new Uint8Array(source), options);
  if (source instanceof Blob) {
    checkSize(source.size, source, options.limit);
    return new Uint8Array(await source.arrayBuffer());
  }
  const path = pathOf(source);
  if (path !== undefined) return await readPath(path, options);
  const url = source instanceof URL ? source : urlOf(source as string)!;
  switch (url.protocol) {
    case "data:":
    case "blob:":
      return await readLocalUrl(url, options);
    case "http:":
    case "https:":
      return await download(url, options);
    default:
      throw new InvalidArgument(
        `${describeSource(url)}: media are read from http:, https:, file:, data: and blob: URLs.`,
      );
  }
}

async function readLocalUrl(url: URL, options: ReadOptions): Promise<Uint8Array<ArrayBuffer>> {
  try {
    return await readBody(await fetch(url, { signal: options.signal }), url, options);
  } catch (cause) {
    options.signal?.throwIfAborted();
    if (cause instanceof MarkbaseError) throw cause;
    throw new MediaError("media_unreadable", `${describeSource(url)} cannot be read: ${reasonOf(cause)}.`, {
      cause,
    });
  }
}

async function readPath(
  path: string,
  { limit, signal, head }: ReadOptions,
): Promise<Uint8Array<ArrayBuffer>> {
  if (path === "" || path.includes("\0")) {
    throw new InvalidArgument("The path of a media file is empty or has a null character.");
  }
  if (path.length > MOST_PATH) {
    throw new InvalidArgument(
      `${
        describeSource(path)
      } has ${path.length} characters and is no path. If it is base64, write data:;base64, ` +
        `before it, or pass the bytes.`,
    );
  }
  await requirePermission({ name: "read", path }, READING);
  try {
    using file = await openFile(path, signal);
    const { size, isDirectory } = await file.stat();
    if (isDirectory) throw new MediaError("media_unreadable", `${path} is a folder. Pass a file.`);
    if (head) return await readStart(file, Math.min(size, limit));
    checkSize(size, path, limit);
    return await collect(file.readable, path, { limit, signal });
  } catch (cause) {
    signal?.throwIfAborted();
    if (cause instanceof MarkbaseError) throw cause;
    if (cause instanceof Deno.errors.NotFound || cause instanceof Deno.errors.NotADirectory) {
      throw new MediaError("media_missing", `${path} does not exist. Correct the path.`, { cause });
    }
    throw new MediaError("media_unreadable", `${path} cannot be read: ${reasonOf(cause)}.`, { cause });
  }
}

/** Opens a file; an abort ends the wait for somebody to open the other end of a pipe. */
async function openFile(path: string, signal: AbortSignal | undefined): Promise<Deno.FsFile> {
  const opening = Deno.open(path, { read: true });
  try {
    return await unlessAborted(opening, signal);
  } catch (reason) {
    opening.then((file) => file.close(), () => {}); // should it still come
    throw reason;
  }
}

async function readStart(file: Deno.FsFile, length: number): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = new Uint8Array(length);
  let filled = 0;
  while (filled < length) {
    const count = await file.read(bytes.subarray(filled));
    if (count === null) break;
    filled += count;
  }
  return bytes.subarray(0, filled);
}

/** Follows redirects by hand, so that each host's permission is asked for by name. */
async function download(first: URL, options: ReadOptions): Promise<Uint8Array<ArrayBuffer>> {
  let url = first;
  for (let redirects = 0; redirects <= MAX_REDIRECTS; redirects++) {
    await requirePermission({ name: "net", host: url.host }, `to fetch ${describeSource(first)}`);
    try {
      const response = await fetch(url, { signal: options.signal, redirect: "manual" });
      const location = response.headers.get("location");
      if (response.status < 300 || response.status > 399 || location === null) {
        return await readBody(response, first, options);
      }
      await response.body?.cancel();
      url = new URL(location, url);
    } catch (cause) {
      options.signal?.throwIfAborted();
      if (cause instanceof MarkbaseError) throw cause;
      throw new MediaError(
        "media_unreadable",
        `${describeSource(first)} cannot be fetched: ${reasonOf(cause)}.`,
        { cause },
      );
    }
    if (url.protocol !== "http:" && url.protocol !== "https:") {
      throw new MediaError(
        "media_unreadable",
        `${describeSource(first)} redirects to ${describeSource(url)}.`,
      );
    }
  }
  throw new MediaError(
    "media_unreadable",
    `${describeSource(first)} redirects more than ${MAX_REDIRECTS} times.`,
  );
}

async function readBody(
  response: Response,
  url: URL,
  options: ReadOptions,
): Promise<Uint8Array<ArrayBuffer>> {
  if (!response.ok) {
    await response.body?.cancel();
    throw new MediaError(
      "media_unreadable",
      `${describeSource(url)} cannot be fetched: HTTP status ${response.status}.`,
    );
  }
  return response.body === null ? new Uint8Array() : await collect(response.body, url, options);
}

async function collect(
  stream: ReadableStream<Uint8Array>,
  source: MediaSource,
  { limit, signal }: ReadOptions,
): Promise<Uint8Array<ArrayBuffer>> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  const reader = stream.getReader();
  try {
    for (;;) {
      const { value: chunk, done } = await unlessAborted(reader.read(), signal);
      if (done) break;
      signal?.throwIfAborted();
      checkSize(size += chunk.length, source, limit);
      chunks.push(chunk);
    }
  } catch (error) {
    reader.cancel().catch(() => {}); // which waits for a read that is under way
    throw error;
  }
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}

function checkSize(bytes: number, source: MediaSource, limit: number): void {
  if (bytes <= limit) return;
  throw new MediaError(
    "media_too_large",
    `${describeSource(source)} has ${bytes} bytes or more; ${limit} are allowed. Make it smaller.`,
  );
}

/** A text as a URL if it begins like one; `c:\\x` and `a:b` are paths. */
function urlOf(text: string): URL | undefined {
  if (!/^((https?|file|data|blob):|[a-z][a-z0-9+.-]+:\/\/)/i.test(text)) return undefined;
  try {
    return new URL(text);
  } catch (cause) {
    throw new InvalidArgument(`${describeSource(text)} is neither a path nor a URL.`, { cause });
  }
}

function pathOfUrl(url: URL): string {
  try {
    return pathOfFileUrl(url);
  } catch (cause) {
    throw new InvalidArgument(`${url.href} does not name a file of this machine.`, { cause });
  }
}

function reasonOf(cause: unknown): string {
  return (cause instanceof Error ? cause.message : String(cause)).replace(/\.$/, "");
}
