/** Reads the tokenizer files of a checkpoint from a folder or the network. */
import { pathOfFileUrl } from "../file_url.ts";
import { MissingPermission, TokenizerError } from "../errors.ts";
import { withoutByteOrderMark } from "../byte_order_mark.ts";

/** Larger than any tokenizer file known, small enough to keep a wrong file from filling memory. */
const MAX_BYTES = 256 * 2 ** 20;

/**
 * Bytes of the file `name` in a folder (path, or URL with `file:`, `http:` or `https:`), or undefined when there is
 * none. Throws TokenizerError (also for more than `maxBytes`), MissingPermission, or the signal's reason.
 */
export async function readTokenizerFile(
  folder: string | URL,
  name: string,
  signal?: AbortSignal,
  maxBytes: number = MAX_BYTES,
): Promise<Uint8Array | undefined> {
  const url = urlOf(folder, name);
  try {
    if (url === undefined || url.protocol === "file:") {
      const path = url ?? `${folder}/${name}`;
      const { isFile, size } = await Deno.stat(path);
      if (!isFile) throw new TokenizerError("tokenizer_read", `${name} in ${folder} is not a file.`);
      checkSize(size, name, maxBytes);
      return await Deno.readFile(path, { signal });
    }
    const response = await fetch(url, { signal });
    if (response.status === 404) {
      await response.body?.cancel();
      return undefined;
    }
    if (!response.ok) {
      await response.body?.cancel();
      throw new TokenizerError(
        "tokenizer_fetch",
        `${url.href} answered ${response.status}. Check the address, or try again later.`,
      );
    }
    return await readBody(response, name, maxBytes);
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof Deno.errors.NotFound || error instanceof Deno.errors.NotADirectory) return undefined;
    if (error instanceof Deno.errors.NotCapable) {
      const local = url === undefined || url.protocol === "file:";
      const path = url === undefined ? folder : local ? pathOfFileUrl(folder) : "";
      const flag = local ? `--allow-read=${path}` : `--allow-net=${url.host}`;
      throw new MissingPermission(flag, `to read ${name}`, { cause: error });
    }
    if (error instanceof TokenizerError) throw error;
    throw new TokenizerError("tokenizer_read", `${name} in ${folder} cannot be read: ${messageOf(error)}.`, {
      cause: error,
    });
  }
}

/** The file's URL, or undefined when `folder` is a path. */
function urlOf(folder: string | URL, name: string): URL | undefined {
  if (typeof folder === "string" && !/^(https?|file):/.test(folder)) return undefined;
  const base = new URL(folder);
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  return new URL(name, base);
}

/** The body of a response; stops reading as soon as it is too large. */
async function readBody(response: Response, name: string, maxBytes: number): Promise<Uint8Array> {
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  for await (const chunk of response.body ?? []) {
    size += chunk.length;
    checkSize(size, name, maxBytes);
    chunks.push(chunk);
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

function checkSize(bytes: number, name: string, maxBytes: number): void {
  if (bytes <= maxBytes) return;
  throw new TokenizerError(
    "tokenizer_too_large",
    `${name} has ${bytes} bytes or more; at most ${maxBytes} are read. Check that it is a tokenizer file.`,
  );
}

/** The JSON object in a file; `name` is for messages. Throws TokenizerError. */
export function parseJsonObject(json: Uint8Array | string, name: string): object {
  let value: unknown;
  try {
    // Both pass over a byte order mark.
    value = JSON.parse(
      typeof json === "string"
        ? withoutByteOrderMark(json)
        : new TextDecoder("utf-8", { fatal: true }).decode(json),
    );
  } catch (error) {
    throw new TokenizerError(
      "tokenizer_malformed",
      `${name} is not valid JSON: ${messageOf(error)}. The file is damaged or truncated; fetch it again.`,
      { cause: error },
    );
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  throw new TokenizerError("tokenizer_malformed", `${name} does not hold a JSON object. Fetch it again.`);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
