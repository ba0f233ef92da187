/** Where markbase keeps what it builds and downloads. */
import { LibraryError } from "../src/errors.ts";
import { optionalEnv, requirePermission } from "./permissions.ts";

/**
 * The cache folder as an absolute path: the `cache` option, else `MARKBASE_CACHE`, else `markbase` in the platform's
 * cache folder. Does not create it. Throws `MissingPermission` where the environment may not be read, `LibraryError`
 * where the platform names no folder.
 */
export async function cacheFolder(cache?: string): Promise<string> {
  const named = cache ?? await optionalEnv("MARKBASE_CACHE");
  if (named !== undefined) return await absolute(named);
  const xdg = Deno.build.os === "darwin" ? undefined : await optionalEnv("XDG_CACHE_HOME");
  if (xdg?.startsWith("/")) return `${xdg}/markbase`;
  await requirePermission(
    { name: "env", variable: "HOME" },
    "to find the cache folder (or pass the cache option, or grant --allow-env=MARKBASE_CACHE)",
  );
  const home = Deno.env.get("HOME");
  if (home) return `${home}${Deno.build.os === "darwin" ? "/Library/Caches" : "/.cache"}/markbase`;
  throw new LibraryError(
    "no_cache_folder",
    "HOME is not set, so there is no cache folder. Set MARKBASE_CACHE or pass the cache option.",
  );
}

async function absolute(path: string): Promise<string> {
  const trimmed = path.length > 1 ? path.replace(/\/+$/, "") : path;
  if (trimmed.startsWith("/")) return trimmed;
  await requirePermission({ name: "read", path: "." }, `to resolve the relative cache folder "${path}"`);
  return `${Deno.cwd()}/${trimmed}`;
}
