/** How a model on the hub is named: `org/name`, then `:revision` or `@revision`, then `/file`. */
import { HubError, InvalidArgument } from "../errors.ts";

/** A model on the hub, or one file or folder of it. */
export interface HubReference {
  /** `org/name` */ repository: string;
  /** branch, tag, `refs/pr/N` or commit; undefined for the default branch */ revision: string | undefined;
  /** path of a file or folder inside the repository; undefined for all of it */ file: string | undefined;
}

/** The branch that is meant where none is named. */
export const DEFAULT_REVISION: string = "main";

// The hub's own rule: letters, digits, single "-", "." and "_" between them, 96 characters at most.
const NAME = /^(?!.*(--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?$/;
const REFERENCE = /^([^/:@]+)\/([^/:@]+)(?:[:@](refs\/[a-z]+\/[^/]+|[^/]+))?(?:\/(.*))?$/;

/** Reads a reference; null for text that cannot be one, such as an absolute path. Throws `InvalidArgument`. */
export function parseReference(text: string): HubReference | null {
  const match = REFERENCE.exec(text);
  if (match === null || !NAME.test(match[1]) || !NAME.test(match[2])) return null;
  const revision = match[3] === undefined ? undefined : decode(match[3]);
  if (revision !== undefined && !isRevision(revision)) {
    throw new InvalidArgument(`"${revision}" in ${text} is not a revision.`);
  }
  const file = match[4]?.replace(/\/+$/, "") || undefined;
  if (file !== undefined) checkFileName(file, text);
  return { repository: `${match[1]}/${match[2]}`, revision, file };
}

/** The reference in a page address of the hub, as `…/org/name/tree/main` or `…/org/name/blob/main/model.gguf`. */
export function referenceOfUrl(url: URL, endpoint: URL): HubReference | null {
  const base = endpoint.pathname.replace(/\/+$/, "");
  if (url.origin !== endpoint.origin || !url.pathname.startsWith(`${base}/`)) return null;
  const [org, name, kind, ...rest] = url.pathname.slice(base.length + 1).replace(/\/+$/, "").split("/");
  if (name === undefined) return null;
  if (kind === undefined) return parseReference(`${org}/${name}`);
  if (!["tree", "blob", "resolve"].includes(kind) || rest.length === 0) return null;
  const parts = rest[0] === "refs" ? [rest.slice(0, 3).join("/"), ...rest.slice(3)] : rest;
  return parseReference(`${org}/${name}@${parts.map(decode).join("/")}`);
}

/** The reference as a user would write it. */
export function referenceText({ repository, revision, file }: HubReference): string {
  const spelled = revision?.startsWith("refs/") ? revision : encodeURIComponent(revision ?? "");
  const at = revision === undefined ? "" : `@${spelled}`;
  return repository + at + (file === undefined ? "" : `/${file}`);
}

/**
 * Refuses names that could leave their folder or mean something else on another system. `from` is what named the
 * file. Throws `HubError` with code `unsafe_name`.
 */
export function checkFileName(name: string, from: string): void {
  const safe = name.length <= 1024 && name.split("/").every((part) =>
    // deno-lint-ignore no-control-regex
    part !== "" && part.length <= 255 && !/^\.{1,2}$/.test(part) && !/[\\:\x00-\x1f\x7f]/.test(part)
  );
  if (safe) return;
  throw new HubError(
    "unsafe_name",
    `${from} names the file ${
      JSON.stringify(name)
    }, which is no plain path inside its folder. It is refused.`,
  );
}

function isRevision(revision: string): boolean {
  return revision.length <= 255 && revision.split("/").every((part) => /^(?!\.)[\w.+-]+$/.test(part));
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch (cause) {
    throw new InvalidArgument(`"${text}" is not valid percent-encoding.`, { cause });
  }
}
