/**
 * What a repository on the hub holds. One JSON answer has it all (commit, names, sizes, hashes), so the hub's own
 * JavaScript client, which neither resumes nor verifies nor locks, would add 40 modules for this one request.
 */
import { HubError } from "../errors.ts";
import { type Answer, ask, fetchJson, type HubContext, persist } from "./http.ts";
import { checkFileName, DEFAULT_REVISION, type HubReference, referenceText } from "./reference.ts";

/** One file of a repository. */
export interface HubFile {
  /** path inside the repository */ name: string;
  /** in bytes */ size: number;
  /** SHA-256 of a large file's content or Git's hash of a small one, hexadecimal; names the blob in the cache */
  etag: string;
}

/** A file whose size or hash the listing left out. */
export type ListedFile = { name: string } & Partial<HubFile>;

/** A repository at one commit. */
export interface Repository {
  /** `org/name` as the hub spells it now; it may have been renamed */ name: string;
  /** the commit that the revision stands for */ commit: string;
  files: ListedFile[];
}

const MAX_FILES = 100_000;

/** Reads what a revision holds. Throws `HubError`, with code `unreachable` where there is no network. */
export async function readRepository(context: HubContext, reference: HubReference): Promise<Repository> {
  const { repository, revision = DEFAULT_REVISION } = reference;
  const url = at(context, `api/models/${repository}/revision/${encodeURIComponent(revision)}`);
  url.searchParams.set("blobs", "true");
  const what = referenceText({ ...reference, file: undefined });
  const answer = await fetchJson(context, url, what) as Record<string, unknown> | null;
  const { sha, siblings } = answer ?? {};
  if (typeof sha !== "string" || !/^[0-9A-Za-z]{1,64}$/.test(sha) || !Array.isArray(siblings)) {
    throw new HubError(
      "invalid_answer",
      `${what}: ${url.href} does not tell commit and files. Check HF_ENDPOINT.`,
    );
  }
  if (siblings.length > MAX_FILES) {
    throw new HubError("invalid_answer", `${what} has ${siblings.length} files; the limit is ${MAX_FILES}.`);
  }
  return { name: repository, commit: sha, files: siblings.map((entry) => listedFile(entry, what)) };
}

function listedFile(entry: unknown, what: string): ListedFile {
  const { rfilename: name, size, blobId, lfs } = (entry ?? {}) as Record<string, unknown>;
  if (typeof name !== "string") throw new HubError("invalid_answer", `${what} lists a file without a name.`);
  checkFileName(name, what);
  const large = (lfs ?? {}) as Record<string, unknown>;
  const etag = large.sha256 ?? large.oid ?? blobId;
  return {
    name,
    ...(isSize(large.size ?? size) ? { size: (large.size ?? size) as number } : {}),
    ...(typeof etag === "string" ? { etag: checkedEtag(etag, name) } : {}),
  };
}

/** The address of a file at a commit. */
export function fileUrl(
  context: HubContext,
  { name, commit }: Pick<Repository, "name" | "commit">,
  file: string,
): URL {
  const path = file.split("/").map(encodeURIComponent).join("/");
  return at(context, `${name}/resolve/${encodeURIComponent(commit)}/${path}`);
}

/** Asks for size and hash of one file. */
export async function fileMetadata(
  context: HubContext,
  repository: Repository,
  file: string,
): Promise<HubFile> {
  const what = `${file} of ${repository.name}`;
  return await persist(context, async () => {
    const answer = await ask(context, fileUrl(context, repository, file), {
      method: "HEAD",
      stay: true,
      what,
    });
    await answer.response.body?.cancel();
    const etag = etagOf(answer);
    const redirected = answer.response.status >= 300;
    const size = answer.hub.get("x-linked-size") ?? (redirected ? null : answer.hub.get("content-length"));
    if (etag === null || size === null || !isSize(Number(size))) {
      throw new HubError(
        "invalid_answer",
        `${what}: the hub tells no size and hash of it. Check HF_ENDPOINT.`,
      );
    }
    return { name: file, size: Number(size), etag: checkedEtag(etag, file) };
  });
}

/** The hub's hash of the file that an answer is about; null if it says none. */
export function etagOf({ hub }: Answer): string | null {
  return plainEtag(hub.get("x-linked-etag") ?? hub.get("etag"));
}

/** An ETag without quotes and weakness mark. */
export function plainEtag(text: string | null): string | null {
  return text === null ? null : text.replace(/^W\//, "").replaceAll('"', "");
}

/** An ETag becomes a file name. */
function checkedEtag(etag: string, file: string): string {
  if (/^[0-9A-Za-z][0-9A-Za-z_-]{0,127}$/.test(etag)) return etag;
  throw new HubError(
    "invalid_answer",
    `${file}: the hub calls its content ${JSON.stringify(etag)}, which is no hash.`,
  );
}

function isSize(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function at(context: HubContext, path: string): URL {
  return new URL(`${context.settings.endpoint.href.replace(/\/+$/, "")}/${path}`);
}
