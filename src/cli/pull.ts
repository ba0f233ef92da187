/** `markbase pull`, `list` and `remove`: models of the hub in the cache that its clients share. */
import { type CachedRepository, listCache, removeCached } from "../hub/inventory.ts";
import { pull as pullModel } from "../hub/pull.ts";
import { hubSettings } from "../hub/settings.ts";
import { hubReference } from "../hub/source.ts";
import { InvalidArgument } from "../errors.ts";
import { checkWords, describeFlags, parseFlags } from "./args.ts";
import { ProgressBar } from "./progress.ts";
import { bytes, style, table, write } from "./terminal.ts";

const json = { type: "boolean", help: "print everything as one JSON object" } as const;

/** Help text of `pull`. */
export const pullHelp =
  `markbase pull SOURCE\n\nDownloads a model of the hub, or what is missing of it, and prints its path. ` +
  `SOURCE is org/name, org/name@revision\nor org/name/FILE. HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and ` +
  `HF_HUB_OFFLINE are heeded.\n\n${describeFlags({ json })}`;

/** Help text of `list`. */
export const listHelp = `markbase list\n\nLists the models in the hub's cache.\n\n${describeFlags({ json })}`;

/** Help text of `remove`. */
export const removeHelp =
  `markbase remove SOURCE\n\nRemoves a model from the hub's cache: all of org/name, or one revision of it as in ` +
  `org/name@revision\n(a branch, a tag, or the beginning of a commit). What other revisions share stays.\n\n${
    describeFlags({ json })
  }`;

/** Runs `pull` with the words after its name. */
export async function pull(args: string[], signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, { json });
  const reference = await hubReference(oneWord(words, "pull"));
  const settings = await hubSettings();
  using bar = new ProgressBar();
  const pulled = await pullModel(reference, {
    settings,
    signal,
    onProgress: (completed, total) => bar.update({ stage: "download", completed, total }),
  });
  bar.stop();
  for (const { message } of pulled.warnings) await write(Deno.stderr, `warning: ${message}\n`);
  if (values.json) return await write(Deno.stdout, JSON.stringify(pulled) + "\n");
  const size = pulled.files.reduce((sum, file) => sum + file.size, 0);
  await write(
    Deno.stderr,
    `${pulled.repository} at ${pulled.commit.slice(0, 12)}: ${pulled.files.length} files, ${bytes(size)}, ` +
      `${bytes(pulled.downloaded)} downloaded\n`,
  );
  await write(Deno.stdout, pulled.path + "\n");
}

/** Runs `list` with the words after its name. */
export async function list(args: string[], _signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, { json });
  checkWords(words);
  const { cache } = await hubSettings();
  const repositories = await listCache(cache);
  if (values.json) return await write(Deno.stdout, JSON.stringify(repositories) + "\n");
  await write(Deno.stdout, describe(repositories, cache) + "\n");
}

/** Runs `remove` with the words after its name. */
export async function remove(args: string[], _signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, { json });
  const reference = await hubReference(oneWord(words, "remove"));
  const { cache } = await hubSettings();
  const removed = await removeCached(cache, reference);
  await write(
    Deno.stdout,
    values.json ? JSON.stringify(removed) + "\n" : `${removed.repository}: ${bytes(removed.freed)} freed\n`,
  );
}

function describe(repositories: readonly CachedRepository[], cache: string): string {
  if (repositories.length === 0) return `No model is in ${cache}.`;
  const total = repositories.reduce((sum, { bytes }) => sum + bytes, 0);
  const rows = repositories.flatMap(({ repository, revisions, bytes: size, incomplete }) => [
    [repository, "", `${revisions.length} revision${revisions.length === 1 ? "" : "s"}`, bytes(size)],
    ...revisions.map(({ commit, refs, files, bytes: own }) => [
      `  ${commit.slice(0, 12)}`,
      refs.join(", "),
      `${files} files`,
      bytes(own),
    ]),
    ...(incomplete > 0 ? [["  unfinished", "", "", bytes(incomplete)]] : []),
  ]);
  const heading = style(cache, "bold");
  return `${heading}\n${table(rows)}\n${bytes(total)} in all`;
}

function oneWord(words: string[], command: string): string {
  checkWords(words, 1);
  if (words.length === 1) return words[0];
  throw new InvalidArgument(`Name the model, as in markbase ${command} org/name.`);
}
