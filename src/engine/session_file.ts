/**
 * Saved sessions: "MBSESSN1", a u32 header length (little-endian), a JSON header, the bytes of the KV pages group by
 * group, and the SHA-256 of all that. Written to a temporary file and renamed; read page by page.
 */
import type { Hash } from "node:crypto";
import { requirePermission } from "../../ffi/permissions.ts";
import type { Sequence } from "../cache/sequence.ts";
import { ContextFull, MarkbaseError, SessionError } from "../errors.ts";
import { type KvFormat, PAGE_TOKENS, pageBytes } from "../schedule/groups.ts";
import type { ModelParts } from "./model.ts";

/** What a file holds beside the pages. */
export interface SessionState {
  ids: number[];
  drawn: boolean;
  conversation: unknown;
  /** see `saved_media.ts` */ media?: unknown;
}

interface Header extends SessionState {
  version: typeof VERSION;
  /** fingerprint of the weights */ weights: string;
  /** of the arithmetic that made the pages */ precision: "exact" | "fast";
  kvFormat: KvFormat;
  /** tokens whose keys and values are stored */ length: number;
  /** first page index and number of pages of each group */ groups: { first: number; pages: number }[];
}

type Engine = Pick<ModelParts, "forward" | "fingerprint" | "precision" | "kvFormat" | "contextLength">;

const VERSION = 2;
const MAGIC = new TextEncoder().encode("MBSESSN1");
const DIGEST_BYTES = 32;
const MAX_HEADER_BYTES = 256 * 2 ** 20;

/** Writes a session. Rejects with `MissingPermission` or `SessionError`; an earlier file at `path` stays then. */
export async function writeSession(
  path: string,
  engine: Engine,
  sequence: Sequence,
  state: SessionState,
): Promise<void> {
  await requirePermission({ name: "write", path }, "to save the session");
  await checkReplaceable(path);
  const { forward, fingerprint, precision, kvFormat } = engine;
  const header: Header = {
    version: VERSION,
    weights: fingerprint,
    precision,
    kvFormat,
    length: sequence.length,
    groups: sequence.tables.map(({ first, pages }) => ({ first, pages: pages.length })),
    ...state,
  };
  const json = encodeHeader(header, path);
  const length = new Uint8Array(4);
  new DataView(length.buffer).setUint32(0, json.length, true);
  const temporary = `${path}.${crypto.randomUUID()}.part`;
  const hash = await newHash();
  try {
    using file = await Deno.open(temporary, { write: true, createNew: true });
    const write = async (bytes: Uint8Array) => {
      hash.update(bytes);
      await writeAll(file, bytes);
    };
    await write(MAGIC);
    await write(length);
    await write(json);
    for (const [g, { pages }] of sequence.tables.entries()) {
      const bytes = new Uint8Array(pageBytes(forward.groups[g], kvFormat));
      for (let i = 0; i < pages.length; i++) {
        await forward.readPage(g, pages[i], bytes);
        await write(bytes);
      }
    }
    await writeAll(file, hash.digest());
    await file.sync();
    await Deno.rename(temporary, path);
  } catch (error) {
    await Deno.remove(temporary).catch(() => {});
    if (error instanceof MarkbaseError) throw error;
    const reason = error instanceof Error ? error.message : String(error);
    throw new SessionError("session_unwritable", `${path} cannot be written: ${reason}.`, { cause: error });
  }
}

/** SHA-256 of what comes piece by piece. The module takes megabytes, which most processes need not load. */
async function newHash(): Promise<Hash> {
  const { createHash } = await import("node:crypto");
  return createHash("sha256");
}

/** The header as JSON. Throws `SessionError` where it is larger than one that is read back. */
function encodeHeader(header: Header, path: string): Uint8Array<ArrayBuffer> {
  try {
    const json = new TextEncoder().encode(JSON.stringify(header));
    if (json.length <= MAX_HEADER_BYTES) return json;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // longer than any text may be
  }
  throw new SessionError(
    "session_too_large",
    `The pictures and sounds of the session take more than the ${MAX_HEADER_BYTES} bytes that ${path} may hold of them. Save it with fewer.`,
  );
}

/** Reads a session into a new sequence, which the caller owns. Rejects with `SessionError`, `ContextFull` or `MemoryLimit`. */
export async function readSession(
  path: string,
  engine: Engine,
  vocabularySize: number,
): Promise<{ state: SessionState; sequence: Sequence }> {
  await requirePermission({ name: "read", path }, "to restore the session");
  const { forward, kvFormat } = engine;
  using file = await open(path);
  const hash = await newHash();
  const read = async (bytes: number): Promise<Uint8Array<ArrayBuffer>> => {
    const chunk = await readExactly(file, bytes, path);
    hash.update(chunk);
    return chunk;
  };
  const magic = await read(MAGIC.length);
  if (!magic.every((byte, i) => byte === MAGIC[i])) throw damaged(path, "it is not a saved session");
  const length = new DataView((await read(4)).buffer).getUint32(0, true);
  const size = (await file.stat()).size;
  if (length > Math.min(MAX_HEADER_BYTES, size)) {
    throw damaged(path, `it declares a header of ${length} bytes`);
  }
  const header = parse(await read(length), path, vocabularySize);
  checkMatch(header, engine, path);
  const pagesTotal = header.groups.reduce(
    (sum, group, g) => sum + group.pages * pageBytes(forward.groups[g], kvFormat),
    0,
  );
  const expected = MAGIC.length + 4 + length + pagesTotal + DIGEST_BYTES;
  if (size !== expected) throw damaged(path, `it has ${size} bytes instead of ${expected}`);

  const sequence = forward.sequence();
  try {
    sequence.reserve(header.length, 1);
    sequence.adopt(header.length, header.groups.map((group) => group.first));
    for (const [g, { pages }] of sequence.tables.entries()) {
      for (let i = 0; i < pages.length; i++) {
        await forward.writePage(g, pages[i], await read(pageBytes(forward.groups[g], kvFormat)));
      }
    }
    const digest = hash.digest();
    const stored = await readExactly(file, DIGEST_BYTES, path);
    if (!stored.every((byte, i) => byte === digest[i])) throw damaged(path, "its checksum does not match");
  } catch (error) {
    sequence.dispose();
    throw error;
  }
  sequence.unreserve();
  const { ids, drawn, conversation, media } = header;
  return { state: { ids, drawn, conversation, media }, sequence };
}

function parse(bytes: Uint8Array, path: string, vocabularySize: number): Header {
  let header: Header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    throw damaged(path, "its header is not JSON", cause);
  }
  if (header?.version !== VERSION) {
    throw new SessionError(
      "session_version",
      `${path} is of version ${header?.version}, this markbase reads version ${VERSION}. Save the session again.`,
    );
  }
  const count = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0;
  const valid = Array.isArray(header.ids) && header.ids.every((id) => count(id) && id < vocabularySize) &&
    count(header.length) && header.length <= header.ids.length && Array.isArray(header.groups) &&
    header.groups.every((group) => count(group?.first) && count(group?.pages)) &&
    typeof header.drawn === "boolean";
  if (!valid) throw damaged(path, "its header is malformed");
  return header;
}

/** The file must belong to these weights and this cache format, and hold what a sequence of its length holds. */
function checkMatch(header: Header, engine: Engine, path: string): void {
  const { fingerprint, precision, kvFormat, contextLength, forward } = engine;
  if (header.weights !== fingerprint) {
    throw new SessionError(
      "session_model",
      `${path} belongs to another model (weights ${header.weights}; this one has ${fingerprint}).`,
    );
  }
  if (header.kvFormat !== kvFormat) {
    throw new SessionError(
      "session_format",
      `${path} holds a cache in ${header.kvFormat}, this model uses ${kvFormat}. Load with kvCache: "${header.kvFormat}".`,
    );
  }
  if (precision === "exact" && header.precision !== "exact") {
    throw new SessionError(
      "session_precision",
      `${path} holds a cache that fast arithmetic made, this model is exact. Load with precision: "fast".`,
    );
  }
  if (header.ids.length > contextLength) throw new ContextFull(header.ids.length, contextLength);
  const end = Math.ceil(header.length / PAGE_TOKENS);
  const complete = header.groups.length === forward.groups.length &&
    header.groups.every(({ first, pages }, g) => {
      const { window } = forward.groups[g];
      const visible = window === null ? 0 : Math.floor(Math.max(0, header.length - window + 1) / PAGE_TOKENS);
      return first <= visible && first + pages === end;
    });
  if (!complete) throw damaged(path, "its page tables do not fit its length");
}

/** A session replaces files alone: a device or folder of that name would be lost, or fail late. */
async function checkReplaceable(path: string): Promise<void> {
  const there = await Deno.stat(path).catch(() => null);
  if (there === null || there.isFile) return;
  throw new SessionError(
    "session_unwritable",
    `${path} cannot be written: it is there and no file. Name another path.`,
  );
}

async function open(path: string): Promise<Deno.FsFile> {
  try {
    if (!(await Deno.stat(path)).isFile) throw new Error("it is not a file");
    return await Deno.open(path, { read: true });
  } catch (cause) {
    if (cause instanceof Deno.errors.NotFound) {
      throw new SessionError("session_missing", `There is no saved session at ${path}.`, { cause });
    }
    throw unreadable(path, cause);
  }
}

async function readExactly(file: Deno.FsFile, bytes: number, path: string): Promise<Uint8Array<ArrayBuffer>> {
  const chunk = new Uint8Array(bytes);
  for (let at = 0; at < bytes;) {
    const count = await file.read(chunk.subarray(at)).catch((cause) => {
      throw unreadable(path, cause);
    });
    if (count === null) throw damaged(path, "it is truncated");
    at += count;
  }
  return chunk;
}

async function writeAll(file: Deno.FsFile, bytes: Uint8Array): Promise<void> {
  for (let at = 0; at < bytes.length;) at += await file.write(bytes.subarray(at));
}

function unreadable(path: string, cause: unknown): SessionError {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new SessionError("session_unreadable", `${path} cannot be read: ${reason}.`, { cause });
}

/** The error for a file that cannot be restored. */
export function damaged(path: string, what: string, cause?: unknown): SessionError {
  return new SessionError("session_damaged", `${path} cannot be restored: ${what}. Save the session again.`, {
    cause,
  });
}
