/**
 * A hub on loopback, as far as clients see it: commits, file lists with sizes and hashes, and a second host that holds
 * the large files. Tests make it misbehave by answering single requests themselves.
 */
import { createHash } from "node:crypto";
import { HubError } from "../../src/errors.ts";
import { pull, type Pulled, type PullInternals, type PullOptions } from "../../src/hub/pull.ts";
import { parseReference } from "../../src/hub/reference.ts";

/** What a test answers itself; undefined leaves the request to the hub. */
export type Hook = (request: Seen) => Response | Promise<Response> | undefined;

/** A request as the servers saw it. */
export interface Seen {
  host: "hub" | "cdn";
  method: string;
  path: string;
  range: string | null;
  token: string | null;
  /** requests for the same method, host and path before this one */ earlier: number;
}

/** Content of a repository at one commit. */
export interface Commit {
  sha: string;
  files: Record<string, Uint8Array>;
}

/** The commit of `org/model` unless a test says otherwise. */
export const COMMIT = "1".repeat(40);

/** Bytes that differ everywhere, so that a shifted or repeated part is noticed. */
export function bytesOf(length: number, seed = 1): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(length);
  for (let i = 0, x = seed; i < length; i++) bytes[i] = x = (x * 75 + 74) % 65537 % 256 + (i >> 8) % 7;
  return bytes;
}

/** SHA-256 as hexadecimal text. */
export function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

/** Git's hash of a file. */
export function gitHash(bytes: Uint8Array): string {
  return createHash("sha1").update(`blob ${bytes.length}\0`).update(bytes).digest("hex");
}

/** The usual small repository. */
export function smallModel(): Commit {
  const text = (value: unknown) => new TextEncoder().encode(JSON.stringify(value));
  return {
    sha: COMMIT,
    files: {
      "README.md": text("read me"),
      "config.json": text({ model_type: "gemma4" }),
      "model.safetensors": bytesOf(200_000),
      "pytorch_model.bin": bytesOf(300_000, 3),
      "tokenizer.json": text({ version: "1.0" }),
    },
  };
}

/** A running hub. */
export class FakeHub implements AsyncDisposable {
  readonly seen: Seen[] = [];
  hook: Hook = () => undefined;
  /** by repository, then revision */ readonly repositories: Record<string, Record<string, Commit>> = {};
  readonly #servers: Deno.HttpServer<Deno.NetAddr>[];
  readonly #stop = new AbortController();

  constructor(readonly cache: string, commit: Commit = smallModel()) {
    this.repositories["org/model"] = { main: commit };
    this.#servers = (["hub", "cdn"] as const).map((host) =>
      Deno.serve(
        { port: 0, hostname: "127.0.0.1", signal: this.#stop.signal, onListen: () => {} },
        (request) => this.#answer(host, request),
      )
    );
  }

  static async start(commit?: Commit): Promise<FakeHub> {
    return new FakeHub(await Deno.makeTempDir({ prefix: "markbase-hub-" }), commit);
  }

  get endpoint(): string {
    return `http://127.0.0.1:${this.#servers[0].addr.port}`;
  }

  get cdn(): string {
    return `http://127.0.0.1:${this.#servers[1].addr.port}`;
  }

  get folder(): string {
    return `${this.cache}/models--org--model`;
  }

  /** Pulls without pauses between attempts. */
  async pull(
    source = "org/model",
    options: Partial<PullOptions> & { token?: string; offline?: boolean } = {},
    internals: PullInternals = {},
  ): Promise<Pulled> {
    const { token, offline = false, ...rest } = options;
    const settings = { endpoint: new URL(this.endpoint), cache: this.cache, token, offline };
    return await pull(parseReference(source)!, { settings, ...rest }, {
      wait: async (_, signal) => {
        signal?.throwIfAborted();
        await new Promise((resolve) => setTimeout(resolve, 1));
      },
      freeBytes: () => Promise.resolve(null),
      ...internals,
    });
  }

  /** The code of the `HubError` with which a pull fails. */
  async failure(...args: Parameters<FakeHub["pull"]>): Promise<HubError> {
    const error = await this.pull(...args).then(() => null, (error) => error);
    if (error instanceof HubError) return error;
    throw new Error("the pull should have failed with a HubError", { cause: error });
  }

  /** Requests for a file's content. */
  downloads(file: string): Seen[] {
    return this.seen.filter(({ method, path }) => method === "GET" && path.endsWith(`/${file}`));
  }

  /** Names in a folder below the repository's, sorted. */
  names(folder: string): string[] {
    return [...Deno.readDirSync(`${this.folder}/${folder}`)].map(({ name }) => name).sort();
  }

  /** The blob that holds what has come of a large file. */
  incomplete(bytes: Uint8Array): string {
    return `${this.folder}/blobs/${sha256(bytes)}.incomplete`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await Promise.all(this.#servers.map((server) => server.finished));
    await Deno.remove(this.cache, { recursive: true });
  }

  async #answer(host: Seen["host"], request: Request): Promise<Response> {
    const { pathname: path, search } = new URL(request.url);
    const { method, headers } = request;
    const earlier = this.seen.filter((s) => s.host === host && s.method === method && s.path === path).length;
    const seen = {
      host,
      method,
      path,
      range: headers.get("range"),
      token: headers.get("authorization"),
      earlier,
    };
    this.seen.push(seen);
    return await this.hook(seen) ??
      (host === "hub" ? this.hub(method, path, search, seen) : this.content(path, seen));
  }

  /** What the hub says. */
  hub(method: string, path: string, search: string, seen: Seen): Response {
    const api = /^\/api\/models\/([^/]+\/[^/]+)\/revision\/(.+)$/.exec(path);
    if (api) {
      const repository = this.repositories[api[1]];
      if (!repository) return refusal(404, "RepoNotFound");
      const commit = commitOf(repository, decodeURIComponent(api[2]));
      if (!commit) return refusal(404, "RevisionNotFound");
      return Response.json({
        id: api[1],
        sha: commit.sha,
        siblings: siblings(commit, search.includes("blobs=true")),
      });
    }
    const [, repository, revision, file] = /^\/([^/]+\/[^/]+)\/resolve\/([^/]+)\/(.+)$/.exec(path) ?? [];
    const commit = commitOf(this.repositories[repository] ?? {}, decodeURIComponent(revision ?? ""));
    const bytes = commit?.files[decodeURIComponent(file ?? "")];
    if (!commit || !bytes) return refusal(404, "EntryNotFound");
    const headers: Record<string, string> = { "x-repo-commit": commit.sha };
    if (!isLarge(file)) return part(bytes, seen.range, { ...headers, etag: `"${gitHash(bytes)}"` }, method);
    Object.assign(headers, { "x-linked-etag": `"${sha256(bytes)}"`, "x-linked-size": String(bytes.length) });
    return new Response(null, { status: 302, headers: { ...headers, location: `${this.cdn}${path}` } });
  }

  /** What the host of the large files says. */
  content(path: string, { range, method }: Seen): Response {
    const [, repository, revision, file] = /^\/([^/]+\/[^/]+)\/resolve\/([^/]+)\/(.+)$/.exec(path) ?? [];
    const bytes = commitOf(this.repositories[repository], decodeURIComponent(revision))!
      .files[decodeURIComponent(file)];
    return part(bytes, range, { etag: `"${sha256(bytes).slice(0, 16)}"` }, method);
  }
}

/** An answer with an error code of the hub. */
export function refusal(status: number, code?: string, headers: Record<string, string> = {}): Response {
  return new Response("no", { status, headers: { ...headers, ...(code ? { "x-error-code": code } : {}) } });
}

/** Some bytes as a server that knows ranges sends them. */
export function part(
  bytes: Uint8Array,
  range: string | null,
  headers: Record<string, string> = {},
  method = "GET",
): Response {
  const body = (from: number) => method === "HEAD" ? null : bytes.slice(from) as Uint8Array<ArrayBuffer>;
  const from = Number(/^bytes=(\d+)-$/.exec(range ?? "")?.[1] ?? NaN);
  if (Number.isNaN(from)) {
    return new Response(body(0), { headers: { ...headers, "content-length": String(bytes.length) } });
  }
  if (from >= bytes.length) {
    return new Response(null, { status: 416, headers: { "content-range": `bytes */${bytes.length}` } });
  }
  return new Response(body(from), {
    status: 206,
    headers: { ...headers, "content-range": `bytes ${from}-${bytes.length - 1}/${bytes.length}` },
  });
}

/** An answer whose connection breaks after its first `length` bytes. */
export function broken(bytes: Uint8Array, length: number, headers: Record<string, string> = {}): Response {
  let sent = false;
  const stream = new ReadableStream<Uint8Array>({
    async pull(controller) {
      if (sent) {
        await new Promise((resolve) => setTimeout(resolve, 20)); // let the bytes leave first
        return controller.error(new Error("the connection is reset"));
      }
      controller.enqueue(bytes.slice(0, length));
      sent = true;
    },
  });
  return new Response(stream, { headers: { ...headers, "content-length": String(bytes.length) } });
}

function isLarge(file: string): boolean {
  return /\.(safetensors|gguf|bin)$/.test(file);
}

function commitOf(revisions: Record<string, Commit>, revision: string): Commit | undefined {
  return revisions[revision] ?? Object.values(revisions).find(({ sha }) => sha === revision);
}

function siblings({ files }: Commit, blobs: boolean): unknown[] {
  return Object.entries(files).map(([rfilename, bytes]) => {
    if (!blobs) return { rfilename };
    const listed = { rfilename, size: bytes.length, blobId: gitHash(bytes) };
    return isLarge(rfilename)
      ? { ...listed, lfs: { sha256: sha256(bytes), size: bytes.length, pointerSize: 134 } }
      : listed;
  });
}
