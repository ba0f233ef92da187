/** Where a model comes from: what callers write as its source, turned into the path of a folder or file. */
import { fileURLToPath } from "node:url";
import { HubError, InvalidArgument } from "../errors.ts";
import { shippedModel, type ShippedOptions } from "./shipped.ts";

/**
 * The path of a source's folder or file; the shipped model may be fetched for it. Rejects with `InvalidArgument` for what
 * is no source, `HubError` for sources that cannot be read yet.
 */
export async function sourcePath(
  source: string | URL,
  options: Omit<ShippedOptions, "base"> = {},
): Promise<string> {
  if (source === "tiny") return await shippedModel(options);
  const path = source instanceof URL ? pathOfUrl(source) : source;
  if (typeof path !== "string" || path === "") {
    throw new InvalidArgument('The source of a model is a folder, a .safetensors or .gguf file, or "tiny".');
  }
  if (/^([a-z][a-z0-9+.-]*:\/\/|file:)/i.test(path)) return await sourcePath(urlOf(path), options);
  return path;
}

function urlOf(text: string): URL {
  try {
    return new URL(text);
  } catch (cause) {
    throw new InvalidArgument(`${text} is neither a path nor a URL.`, { cause });
  }
}

function pathOfUrl(url: URL): string {
  if (url.protocol !== "file:") {
    throw new HubError(
      "unsupported_source",
      `${url.href} is not a file: URL. Download the model into a folder first.`,
    );
  }
  try {
    return fileURLToPath(url);
  } catch (cause) {
    throw new InvalidArgument(`${url.href} does not name a file of this machine.`, { cause });
  }
}
