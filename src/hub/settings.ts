/** What the environment says about the hub, in the variables of its Python client. */
import { InvalidArgument } from "../errors.ts";
import { optionalEnv, requirePermission } from "../../ffi/permissions.ts";

/** Where the hub is and where its files are kept. */
export interface HubSettings {
  endpoint: URL;
  /** absolute path of the folder that holds `models--org--name` */ cache: string;
  /** sent to the endpoint only, never to hosts that it redirects to */ token: string | undefined;
  /** the network is not to be used */ offline: boolean;
}

const DEFAULT_ENDPOINT = "https://huggingface.co";
const TRUE = ["1", "true", "yes", "on"];

/**
 * Reads `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH` and `HF_HUB_OFFLINE`. The cache is
 * `HF_HUB_CACHE`, else `HF_HOME/hub`, else `cache/hub` where the caller gives a cache folder, else the Python
 * client's own place. The token is `HF_TOKEN`, else the file that the client's login writes. Variables that may not
 * be read count as unset; throws `MissingPermission` where no folder can be found without one.
 */
export async function hubSettings(cache?: string): Promise<HubSettings> {
  const offline = await optionalEnv("HF_HUB_OFFLINE") ?? await optionalEnv("TRANSFORMERS_OFFLINE") ?? "";
  const home = await namedHome();
  const named = await optionalEnv("HF_HUB_CACHE") ?? await optionalEnv("HUGGINGFACE_HUB_CACHE");
  let folder = named === undefined ? undefined : await absolute(named);
  folder ??= home && `${home}/hub`;
  folder ??= cache === undefined ? undefined : `${await absolute(cache)}/hub`;
  folder ??= `${await defaultHome()}/hub`;
  return {
    endpoint: endpointOf(await optionalEnv("HF_ENDPOINT") ?? DEFAULT_ENDPOINT),
    cache: folder,
    token: await token(home),
    offline: TRUE.includes(offline.toLowerCase()),
  };
}

function endpointOf(text: string): URL {
  const url = URL.canParse(text) ? new URL(text.replace(/\/+$/, "")) : null;
  if (url !== null && (url.protocol === "https:" || url.protocol === "http:")) return url;
  throw new InvalidArgument(`HF_ENDPOINT is "${text}"; it must be an http or https address.`);
}

async function namedHome(): Promise<string | undefined> {
  const home = await optionalEnv("HF_HOME");
  return home === undefined ? undefined : await absolute(home);
}

async function defaultHome(): Promise<string> {
  const xdg = await optionalEnv("XDG_CACHE_HOME");
  if (xdg?.startsWith("/")) return `${xdg}/huggingface`;
  return `${await userFolder(
    "to find the hub's cache (or grant --allow-env=HF_HOME and set it)",
  )}/.cache/huggingface`;
}

async function userFolder(purpose: string): Promise<string> {
  const variable = Deno.build.os === "windows" ? "USERPROFILE" : "HOME";
  await requirePermission({ name: "env", variable }, purpose);
  const folder = Deno.env.get(variable);
  if (folder) return folder.replaceAll("\\", "/");
  throw new InvalidArgument(`${variable} is not set, so the hub's cache has no place. Set HF_HOME.`);
}

/** `HF_TOKEN`, else the token file; undefined where there is none or it may not be read. */
async function token(home: string | undefined): Promise<string | undefined> {
  const given = await optionalEnv("HF_TOKEN") ?? await optionalEnv("HUGGING_FACE_HUB_TOKEN");
  if (given !== undefined) return checkToken(given, "HF_TOKEN");
  if (TRUE.includes((await optionalEnv("HF_HUB_DISABLE_IMPLICIT_TOKEN") ?? "").toLowerCase())) {
    return undefined;
  }
  const path = await optionalEnv("HF_TOKEN_PATH") ?? await tokenFile(home);
  if (path === undefined) return undefined;
  if ((await Deno.permissions.query({ name: "read", path })).state !== "granted") return undefined;
  try {
    return checkToken(await Deno.readTextFile(path), path);
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return undefined;
    throw error;
  }
}

async function tokenFile(home: string | undefined): Promise<string | undefined> {
  if (home !== undefined) return `${home}/token`;
  const xdg = await optionalEnv("XDG_CACHE_HOME");
  if (xdg?.startsWith("/")) return `${xdg}/huggingface/token`;
  const folder = await optionalEnv(Deno.build.os === "windows" ? "USERPROFILE" : "HOME");
  return folder && `${folder}/.cache/huggingface/token`;
}

function checkToken(text: string, from: string): string | undefined {
  const token = text.replaceAll(/[\r\n]/g, "").trim();
  if (token === "") return undefined;
  if (/^[\x21-\x7e]+$/.test(token)) return token;
  throw new InvalidArgument(`The token in ${from} holds characters that no token has. Log in again.`);
}

async function absolute(path: string): Promise<string> {
  if (path === "~" || path.startsWith("~/")) path = await userFolder(`to resolve "${path}"`) + path.slice(1);
  const trimmed = path.length > 1 ? path.replace(/\/+$/, "") : path;
  if (trimmed.startsWith("/") || /^[A-Za-z]:[\\/]/.test(trimmed)) return trimmed;
  await requirePermission({ name: "read", path: "." }, `to resolve the relative folder "${path}"`);
  return `${Deno.cwd()}/${trimmed}`;
}
