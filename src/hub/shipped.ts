/** The small trained model that ships with the project: beside the sources, or fetched once where these come from a URL. */
import { pathOfFileUrl } from "../file_url.ts";
import { sha256 } from "../../dylib/sources.ts";
import { cacheFolder } from "../../ffi/cache_folder.ts";
import { requirePermission } from "../../ffi/permissions.ts";
import { HubError } from "../errors.ts";

/** One file of the shipped model. */
export interface ShippedFile {
  name: string;
  /** size in bytes */ bytes: number;
  /** hexadecimal */ sha256: string;
}

/** Every file of `examples/tiny`; a test compares the list with the folder. */
export const SHIPPED_FILES: readonly ShippedFile[] = [
  {
    name: "chat_template.jinja",
    bytes: 3292,
    sha256: "9d0556c728756e61c3599e401a18351c6630deda560a604d3cf6e3fe2280f603",
  },
  {
    name: "config.json",
    bytes: 3573,
    sha256: "ca12ac6fb18c284a7e46becdc0a8e02873e9c43870541b8e541d1e1a7d0112a7",
  },
  {
    name: "generation_config.json",
    bytes: 202,
    sha256: "122d815aa5da671b8def0e4ca2a2b8cfc9b245eb857c416af9cfda301ac8e008",
  },
  {
    name: "model.safetensors",
    bytes: 11442114,
    sha256: "f9beab331b0ecb8534ed11c770e24c7155d4fbf558e68a92d708f3e9f2895bcb",
  },
  {
    name: "processor_config.json",
    bytes: 1686,
    sha256: "09caa3fce768ef2edc36e63d7f0ebfa25e440346820e33344047e0a81d0fdd22",
  },
  {
    name: "tokenizer.json",
    bytes: 90352,
    sha256: "60b0fe1198c8d7bf4b0488974c6c75ce23e1501fc0c74f3a39fdca7e2b689080",
  },
  {
    name: "tokenizer_config.json",
    bytes: 1500,
    sha256: "64af1a74bff8165b4f0f4cc1c4a9aec2b75fc552f305427b155b407a5b6e0888",
  },
];

/** How to fetch. */
export interface ShippedOptions {
  /** cache folder; default as everywhere */ cache?: string;
  /** bytes fetched so far, of how many */ onProgress?: (done: number, total: number) => void;
  signal?: AbortSignal;
  /** where the project's files are; default: where this module came from */ base?: URL;
}

/**
 * The model's folder as a path. A remote one is fetched into the cache, each file checked against its SHA-256 before it
 * gets its name. Rejects with `HubError`, `MissingPermission` or the signal's reason.
 */
export async function shippedModel(options: ShippedOptions = {}): Promise<string> {
  const base = options.base ?? new URL("../../", import.meta.url);
  const source = new URL("examples/tiny/", base);
  if (source.protocol === "file:") return pathOfFileUrl(source).replace(/[/\\]$/, "");
  // The folder is named by its content, so that another version gets another folder.
  const weights = SHIPPED_FILES.find((file) => file.name === "model.safetensors")!;
  const cache = await cacheFolder(options.cache);
  const folder = `${cache}/models/tiny-${weights.sha256.slice(0, 16)}`;
  // For the whole folder, so that whoever grants it is asked once and not for every file.
  await requirePermission({ name: "read", path: cache }, "to look for the model in its cache folder");
  const total = SHIPPED_FILES.reduce((sum, file) => sum + file.bytes, 0);
  let done = 0;
  for (const file of SHIPPED_FILES) {
    if (!await isComplete(`${folder}/${file.name}`, file)) {
      await requirePermission({ name: "write", path: cache }, "to keep the model in its cache folder");
      await fetchFile(new URL(file.name, source), folder, file, options);
    }
    done += file.bytes;
    options.onProgress?.(done, total);
  }
  return folder;
}

/** A file of the right size was verified before it got its name. */
async function isComplete(path: string, file: ShippedFile): Promise<boolean> {
  try {
    return (await Deno.stat(path)).size === file.bytes;
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return false;
    throw error;
  }
}

async function fetchFile(
  url: URL,
  folder: string,
  file: ShippedFile,
  { signal }: ShippedOptions,
): Promise<void> {
  await requirePermission({ name: "net", host: url.host }, "to fetch the model that ships with markbase");
  const bytes = await download(url, signal);
  const found = await sha256(bytes);
  if (found !== file.sha256) {
    throw new HubError(
      "hash_mismatch",
      `${url.href} has SHA-256 ${found} instead of ${file.sha256}. Import another version of markbase, or try again.`,
    );
  }
  await Deno.mkdir(folder, { recursive: true });
  const temporary = `${folder}/${file.name}.${crypto.randomUUID()}.part`;
  try {
    await Deno.writeFile(temporary, bytes);
    await Deno.rename(temporary, `${folder}/${file.name}`);
  } catch (error) {
    await Deno.remove(temporary).catch(() => {});
    throw error;
  }
}

async function download(url: URL, signal: AbortSignal | undefined): Promise<Uint8Array<ArrayBuffer>> {
  try {
    const response = await fetch(url, { signal });
    if (response.ok) return new Uint8Array(await response.arrayBuffer());
    await response.body?.cancel();
    throw new HubError("fetch_failed", `${url.href} cannot be fetched: HTTP status ${response.status}.`);
  } catch (cause) {
    signal?.throwIfAborted();
    if (cause instanceof HubError) throw cause;
    throw new HubError("fetch_failed", `${url.href} cannot be fetched. Check the network and try again.`, {
      cause,
    });
  }
}
