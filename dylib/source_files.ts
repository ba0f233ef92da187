/** The sources of the native library: listed, read or fetched, and checked against their hashes. */
import { requirePermission } from "../ffi/permissions.ts";
import { LibraryError } from "../src/errors.ts";
import { scanSources, sha256, SHADERS, type Sources } from "./sources.ts";
import shippedSources from "./sources.json" with { type: "json" };

/** The folder that these modules are in. */
export const HERE: URL = new URL("./", import.meta.url);

/**
 * Lists the sources below `base`, a folder on this machine or elsewhere that holds this module or a `sources.json`. Throws
 * `LibraryError` ("source_unavailable") or `MissingPermission`.
 */
export async function readSources(base: URL): Promise<Sources> {
  if (base.protocol === "file:") {
    await requirePermission(
      { name: "read", path: pathOf(base) },
      "to read the sources of its native library",
    );
    await requirePermission(
      { name: "read", path: pathOf(new URL(SHADERS, base)) },
      "to read the sources of its GPU kernels",
    );
    return await scanSources(base);
  }
  if (base.href === HERE.href) return shippedSources as Sources;
  return JSON.parse(new TextDecoder().decode(await download(new URL("sources.json", base))));
}

/** Puts sources (path → SHA-256) below a folder, so that what is compiled is what was hashed. Throws `LibraryError`. */
export async function writeSources(files: Record<string, string>, base: URL, folder: string): Promise<void> {
  await Promise.all(
    Object.entries(files).map(async ([path, hash]) => {
      const url = new URL(path, base);
      const bytes = url.protocol === "file:" ? await Deno.readFile(url) : await download(url);
      if (await sha256(bytes) !== hash) {
        throw new LibraryError(
          "source_mismatch",
          `${url.href} is not the file that this version of markbase was made with (SHA-256 ${hash}). ` +
            "Try again; if that does not help, the host serves files of different versions.",
        );
      }
      const target = `${folder}/${path}`;
      await Deno.mkdir(target.slice(0, target.lastIndexOf("/")), { recursive: true });
      await Deno.writeFile(target, bytes);
    }),
  );
}

async function download(url: URL): Promise<Uint8Array<ArrayBuffer>> {
  await requirePermission({ name: "net", host: url.host }, "to fetch the sources of its native library");
  let response: Response;
  try {
    response = await fetch(url);
  } catch (cause) {
    throw new LibraryError("source_unavailable", `${url.href} cannot be fetched. Check the network.`, {
      cause,
    });
  }
  if (!response.ok) {
    await response.body?.cancel();
    throw new LibraryError(
      "source_unavailable",
      `${url.href} cannot be fetched: HTTP status ${response.status}.`,
    );
  }
  return await response.bytes();
}

/** The path of a `file:` URL, without a trailing slash. */
function pathOf(url: URL): string {
  return decodeURIComponent(url.pathname).replace(/\/$/, "");
}
