/** Where a model comes from: what callers write as its source, turned into the path of a folder or file. */
import { pathOfFileUrl } from "../file_url.ts";
import { permissionFlag } from "../../ffi/permissions.ts";
import { HubError, InvalidArgument, MissingPermission } from "../errors.ts";
import type { Warning } from "../warning.ts";
import { isAbsent } from "./layout.ts";
import { type HubReference, parseReference, referenceOfUrl } from "./reference.ts";
import { hubSettings } from "./settings.ts";
import { shippedModel, type ShippedOptions } from "./shipped.ts";

/** How to get a source. */
export interface SourceOptions extends Omit<ShippedOptions, "base"> {
  /** no weights, only what explains a model */ configOnly?: boolean;
}

/** A source on this machine. */
export interface LocalSource {
  /** of a folder or file */ path: string;
  warnings: Warning[];
}

/** Codes of what a path that was mistyped comes to. */
const MAYBE_MISTYPED = new Set(["not_cached", "unreachable", "repository_not_found", "unauthorized"]);

/**
 * A source as files of this machine: the shipped model and models of the hub may be fetched for it. Rejects with
 * `InvalidArgument` for what is no source, and with `HubError` or `MissingPermission`.
 */
export async function localSource(source: string | URL, options: SourceOptions = {}): Promise<LocalSource> {
  if (source === "tiny") return { path: await shippedModel(options), warnings: [] };
  const place = await placeOf(source, options.cache);
  if (typeof place === "string") return { path: place, warnings: [] };
  const settings = await hubSettings(options.cache);
  const { pull } = await import("./pull.ts"); // models of this machine need none of it
  const { configOnly, onProgress, signal } = options;
  try {
    return await pull(place, { settings, configOnly, onProgress, signal });
  } catch (error) {
    const isPath = typeof source === "string" && !source.includes("://");
    if (!isPath || !(error instanceof HubError && MAYBE_MISTYPED.has(error.code))) throw error;
    const read = `No folder or file "${source}" was found here, so that it was taken for a model of the hub.`;
    throw new HubError(error.code, `${error.message} ${read}`, { cause: error });
  }
}

/** The reference that a source makes to the hub. Throws `InvalidArgument` for any other source. */
export async function hubReference(source: string, cache?: string): Promise<HubReference> {
  const place = /^https?:\/\//i.test(source) ? await placeOf(source, cache) : parseReference(source);
  if (place !== null && typeof place !== "string") return place;
  throw new InvalidArgument(
    `"${source}" does not name a model of the hub. Write org/name, org/name@revision or org/name/FILE.`,
  );
}

/** A path of this machine, or a reference to the hub. */
async function placeOf(source: string | URL, cache: string | undefined): Promise<string | HubReference> {
  if (source instanceof URL) return await placeOfUrl(source, cache);
  if (typeof source !== "string" || source === "") {
    throw new InvalidArgument(
      'The source of a model is a folder, a .safetensors or .gguf file, "org/name" on the hub, or "tiny".',
    );
  }
  if (/^([a-z][a-z0-9+.-]*:\/\/|file:)/i.test(source)) return await placeOfUrl(urlOf(source), cache);
  const reference = parseReference(source);
  if (reference === null || await isHere(source, cache)) return source;
  // Two words with a file's ending are a path: repositories are not named like that.
  return reference.file === undefined && /\.(gguf|safetensors)$/.test(source) ? source : reference;
}

/** Whether a path is there. One that may not be read cannot be used, so it counts as absent where the hub can be asked. */
async function isHere(path: string, cache: string | undefined): Promise<boolean> {
  if ((await Deno.permissions.query({ name: "read", path })).state !== "granted") {
    const { endpoint: { host }, offline } = await hubSettings(cache);
    const net = await Deno.permissions.query({ name: "net", host });
    if (offline || net.state === "granted" || Deno.stdin.isTerminal()) return false;
    throw new MissingPermission(
      permissionFlag({ name: "read", path }),
      `to open ${path} (or, for the model of that name on the hub, ${permissionFlag({ name: "net", host })})`,
    );
  }
  try {
    await Deno.lstat(path);
    return true;
  } catch (error) {
    if (isAbsent(error)) return false;
    throw error;
  }
}

function urlOf(text: string): URL {
  try {
    return new URL(text);
  } catch (cause) {
    throw new InvalidArgument(`${text} is neither a path nor a URL.`, { cause });
  }
}

async function placeOfUrl(url: URL, cache: string | undefined): Promise<string | HubReference> {
  if (/^https?:$/.test(url.protocol)) {
    const { endpoint } = await hubSettings(cache);
    const reference = referenceOfUrl(url, endpoint);
    if (reference !== null) return reference;
    throw new HubError(
      "unsupported_source",
      `${url.href} is no page of a model at ${endpoint.host}. Download the model into a folder first.`,
    );
  }
  if (url.protocol !== "file:") {
    throw new HubError(
      "unsupported_source",
      `${url.href} is neither a file: URL nor a page of the hub. Download the model into a folder first.`,
    );
  }
  try {
    return pathOfFileUrl(url);
  } catch (cause) {
    throw new InvalidArgument(`${url.href} does not name a file of this machine.`, { cause });
  }
}
