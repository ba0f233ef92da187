/** Downloads one blob: resumed where it stopped, verified against the hub's hash, then given its name. */
import type { Hash } from "node:crypto";
import { HubError } from "../errors.ts";
import { ask, chunks, type HubContext, Passing, pause } from "./http.ts";
import { type Layout, sizeOf, writeError } from "./layout.ts";
import { withLock } from "./lock.ts";
import { etagOf, fileMetadata, fileUrl, type HubFile, plainEtag, type Repository } from "./repository.ts";

const READ_BYTES = 4 * 2 ** 20;

/**
 * Brings the content of `file` into the cache, unless another process does so first, and returns the file as it
 * was found: its hash and size differ from `file` if the hub changed its mind. `report` gets the bytes that are here and
 * those that have just come over the network.
 */
export async function fetchBlob(
  context: HubContext,
  layout: Layout,
  repository: Repository,
  file: HubFile,
  report: (bytes: number, received: number) => void,
): Promise<HubFile> {
  for (let change = 0;; change++) {
    const { etag } = file;
    const changed = await withLock(layout.lock(etag), {
      wait: context.wait,
      signal: context.signal,
      onWait: async () => report(await sizeOf(layout.incomplete(etag)) ?? 0, 0),
    }, async () => {
      if (await sizeOf(layout.blob(etag)) === file.size) return false;
      await Deno.mkdir(layout.blobs, { recursive: true });
      const partial = await PartialFile.open(layout.incomplete(etag), file, repository.name, context.signal);
      try {
        return await new Download(context, repository, file, partial, report).run() === "changed";
      } finally {
        partial.close();
        if (partial.verified) await Deno.rename(layout.incomplete(etag), layout.blob(etag));
        else if (partial.worthless) await Deno.remove(layout.incomplete(etag)).catch(() => {});
      }
    });
    report(changed ? 0 : file.size, 0);
    if (!changed) return file;
    if (change === 2) {
      throw new HubError(
        "changed",
        `${file.name} of ${repository.name} keeps changing on the hub. Try again later.`,
      );
    }
    file = await fileMetadata(context, repository, file.name);
  }
}

/** The attempts to get the rest of one file. */
class Download {
  readonly #what: string;
  /** ETag of the host that sent the bytes so far; null where they are from an earlier process */
  #source: string | null = null;
  /** since more was here than ever before */ #attempts = 0;
  /** most bytes that were here */ #most = 0;
  /** something hints that the hub has another file now */ #suspicious = false;

  constructor(
    private readonly context: HubContext,
    private readonly repository: Repository,
    private readonly file: HubFile,
    private readonly partial: PartialFile,
    private readonly report: (bytes: number, received: number) => void,
  ) {
    this.#what = `${file.name} of ${repository.name}`;
  }

  /** Until the file is complete and verified, or turns out to be another one now. */
  async run(): Promise<"done" | "changed"> {
    const { partial, file } = this;
    let resumed = partial.size > 0;
    for (;;) {
      this.report(partial.size, 0);
      this.#most = Math.max(this.#most, partial.size);
      while (partial.size < file.size) {
        try {
          if (await this.#transfer() === "changed") return "changed";
        } catch (error) {
          this.context.signal?.throwIfAborted();
          if (!(error instanceof Passing)) throw error;
          if (this.#suspicious && await this.#isAnother()) return "changed";
          this.#attempts = partial.size > this.#most ? 1 : this.#attempts + 1;
          this.#most = Math.max(this.#most, partial.size);
          if (this.#attempts >= this.context.attempts) throw error.error;
          await pause(this.context, this.#attempts - 1, error);
        }
      }
      if (await partial.verify()) return "done";
      const found = partial.digest;
      await partial.restart();
      if (await this.#isAnother()) return "changed";
      // The wrong bytes may be those of an earlier attempt, so one from the start is due.
      if (!resumed) {
        partial.worthless = true;
        throw new HubError(
          "hash_mismatch",
          `${this.#what} came with hash ${found} instead of ${file.etag}. It was deleted; try again, ` +
            `and check what lies between here and ${this.context.settings.endpoint.host} if it happens again.`,
        );
      }
      resumed = false;
      this.#source = null;
    }
  }

  /** One request for the bytes that are missing. */
  async #transfer(): Promise<"more" | "changed"> {
    const { context, partial, file } = this;
    const from = partial.size;
    const url = fileUrl(context, this.repository, file.name);
    const headers: Record<string, string> = from === 0 ? {} : { range: `bytes=${from}-` };
    const answer = await ask(context, url, { what: this.#what, headers });
    const { response } = answer;
    const said = etagOf(answer);
    if (said !== null && said !== file.etag && answer.hub.has("x-linked-etag")) {
      await response.body?.cancel();
      partial.worthless = true;
      return "changed";
    }
    const source = plainEtag(response.headers.get("etag"));
    const other = this.#source !== null && source !== null && source !== this.#source;
    if (
      response.status === 416 || from > 0 && response.status === 206 && (other || !this.#continues(response))
    ) {
      // The range does not fit what the server has, or what it has is no longer what came before.
      await response.body?.cancel();
      await partial.restart();
      this.#source = null;
      this.#suspicious = other;
      throw new Passing(
        new HubError(
          "fetch_failed",
          `${this.#what}: the server refuses to continue at byte ${from}. Try again.`,
        ),
        undefined,
      );
    }
    // A server that ignores the range sends everything from the beginning.
    if (from > 0 && response.status !== 206) await partial.restart();
    this.#source = source;
    for await (const chunk of chunks(context, response, this.#what)) {
      if (partial.size + chunk.length > file.size) {
        await partial.restart();
        this.#suspicious = true;
        throw new Passing(
          new HubError(
            "fetch_failed",
            `${this.#what} is longer than the ${file.size} bytes that the hub names.`,
          ),
          undefined,
        );
      }
      await partial.append(chunk);
      this.report(partial.size, chunk.length);
    }
    if (partial.size < file.size) {
      throw new Passing(
        new HubError(
          "truncated",
          `${this.#what} ended after ${partial.size} of ${file.size} bytes. Try again; what has come is kept.`,
        ),
        undefined,
      );
    }
    return "more";
  }

  /** Whether the hub has another file under this name than when the download began. */
  async #isAnother(): Promise<boolean> {
    this.#suspicious = false;
    const { context, repository, file } = this;
    try {
      const now = await fileMetadata(context, repository, file.name);
      return this.partial.worthless = now.etag !== file.etag || now.size !== file.size;
    } catch (error) {
      if (error instanceof HubError) return false; // what is known of the download says more
      throw error;
    }
  }

  /** Whether a partial answer is the part that was asked for. */
  #continues(response: Response): boolean {
    const range = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(response.headers.get("content-range") ?? "");
    return range !== null && Number(range[1]) === this.partial.size &&
      (range[2] === "*" || Number(range[2]) === this.file.size);
  }
}

/** The bytes of a file that are here, hashed as they come. */
class PartialFile {
  size = 0;
  verified = false;
  /** not worth keeping for another attempt */ worthless = false;
  /** hexadecimal, after `verify` */ digest = "";
  #hash: Hash | null;

  private constructor(
    readonly path: string,
    private readonly handle: Deno.FsFile,
    private readonly file: HubFile,
    private readonly repository: string,
    hash: Hash | null,
  ) {
    this.#hash = hash;
  }

  /** Opens or creates the file, and hashes what is there. */
  static async open(
    path: string,
    file: HubFile,
    repository: string,
    signal: AbortSignal | undefined,
  ): Promise<PartialFile> {
    const hash = await hashFor(file);
    const handle = await Deno.open(path, { create: true, read: true, write: true });
    const partial = new PartialFile(path, handle, file, repository, hash);
    try {
      const { size } = await handle.stat();
      if (size > file.size) await partial.restart();
      else await partial.#readBack(size, signal);
      return partial;
    } catch (error) {
      handle.close();
      throw error;
    }
  }

  async append(bytes: Uint8Array): Promise<void> {
    this.#hash?.update(bytes);
    try {
      for (let at = 0; at < bytes.length;) at += await this.handle.write(bytes.subarray(at));
    } catch (cause) {
      // Bytes that were hashed but not written would spoil the next attempt, which reads the file again.
      throw writeError(
        cause,
        `${this.file.name} of ${this.repository}`,
        this.path.slice(0, this.path.lastIndexOf("/")),
      );
    }
    this.size += bytes.length;
  }

  async restart(): Promise<void> {
    await this.handle.truncate(0);
    await this.handle.seek(0, Deno.SeekMode.Start);
    this.size = 0;
    this.#hash = await hashFor(this.file);
  }

  /** Whether the complete content is what the hub says; makes it durable. */
  async verify(): Promise<boolean> {
    this.digest = this.#hash?.digest("hex") ?? this.file.etag;
    if (this.digest !== this.file.etag) return false;
    await this.handle.sync();
    return this.verified = true;
  }

  close(): void {
    this.handle.close();
  }

  async #readBack(size: number, signal: AbortSignal | undefined): Promise<void> {
    const buffer = new Uint8Array(READ_BYTES);
    while (this.size < size) {
      signal?.throwIfAborted();
      const count = await this.handle.read(buffer);
      if (count === null) break;
      this.#hash?.update(buffer.subarray(0, count));
      this.size += count;
    }
  }
}

/** Large files are named by SHA-256, small ones by Git's SHA-1 of a header and the content; other names say nothing. */
async function hashFor({ etag, size }: HubFile): Promise<Hash | null> {
  const { createHash } = await import("node:crypto"); // megabytes, which most processes need not load
  if (/^[0-9a-f]{64}$/.test(etag)) return createHash("sha256");
  if (/^[0-9a-f]{40}$/.test(etag)) return createHash("sha1").update(`blob ${size}\0`);
  return null;
}
