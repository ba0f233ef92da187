/** What the hub's cache holds, and how to make room in it. */
import { HubError, InvalidArgument } from "../errors.ts";
import { isAbsent, isFolder, Layout, requireCache } from "./layout.ts";
import { isHeld } from "./lock.ts";
import type { HubReference } from "./reference.ts";

/** One commit of a repository in the cache. */
export interface CachedRevision {
  commit: string;
  /** branches and tags that were last seen at this commit */ refs: string[];
  /** of all its files, in bytes, those shared with other revisions too */ bytes: number;
  files: number;
  /** latest change of a file */ modified: Date;
}

/** One model repository in the cache. */
export interface CachedRepository {
  /** `org/name` */ repository: string;
  folder: string;
  /** bytes on disk, unfinished downloads included; a content shared by revisions counts once */ bytes:
    number;
  /** bytes of unfinished downloads */ incomplete: number;
  revisions: CachedRevision[];
}

/** What was removed. */
export interface Removed {
  repository: string;
  /** commits that are gone */ commits: string[];
  /** bytes that are free now */ freed: number;
}

/** One file of a snapshot, and the content that it stands for. */
interface Entry {
  path: string;
  size: number;
  modified: Date;
  /** the same for files that share their content */ content: string;
}

/** Everything in the cache, by name. A cache that does not exist is empty. */
export async function listCache(cache: string): Promise<CachedRepository[]> {
  await requireCache(cache, false);
  const repositories: CachedRepository[] = [];
  for (const name of await namesIn(cache)) {
    if (!/^models--[^-]/.test(name)) continue;
    const repository = name.slice("models--".length).replace("--", "/");
    const layout = new Layout(cache, repository);
    if (layout.folder === `${cache}/${name}`) repositories.push(await describe(layout));
  }
  return repositories.sort((a, b) => a.repository < b.repository ? -1 : 1);
}

/**
 * Removes a repository, or one revision where the reference names one. What another
 * revision shares stays. Throws `HubError`: `not_cached`, or `in_use` while something is being downloaded.
 */
export async function removeCached(cache: string, reference: HubReference): Promise<Removed> {
  if (reference.file !== undefined) {
    throw new InvalidArgument("Whole revisions are removed, not single files. Leave the file out.");
  }
  const layout = new Layout(cache, reference.repository);
  await requireCache(cache, true);
  const { repository, revision } = reference;
  if (!await isFolder(layout.folder)) throw notCached(repository, layout);
  for (const name of await namesIn(layout.locks)) {
    if (await isHeld(`${layout.locks}/${name}`)) {
      throw new HubError("in_use", `${repository} is being downloaded. Stop that first, or try again later.`);
    }
  }
  const before = await describe(layout);
  if (revision === undefined) {
    await Deno.remove(layout.folder, { recursive: true });
    return { repository, commits: before.revisions.map(({ commit }) => commit), freed: before.bytes };
  }
  const named = before.revisions.filter(({ refs }) => refs.includes(revision));
  const full = named.length > 0 || revision.length < 6
    ? named
    : before.revisions.filter(({ commit }) => commit.startsWith(revision));
  if (full.length === 0) throw notCached(`${repository}@${revision}`, layout);
  if (full.length > 1) {
    throw new InvalidArgument(
      `"${revision}" fits ${full.length} revisions of ${repository}. Write more of it.`,
    );
  }
  const [{ commit, refs }] = full;
  const gone = await entriesOf(layout, commit);
  const kept = new Set<string>();
  for (const other of before.revisions) {
    if (other.commit === commit) continue;
    for (const { content } of await entriesOf(layout, other.commit)) kept.add(content);
  }
  await Deno.remove(layout.snapshot(commit), { recursive: true });
  for (const ref of refs) await Deno.remove(`${layout.refs}/${ref}`);
  await Deno.remove(`${layout.folder}/trees/${commit}.json`).catch(() => {}); // the Python client's note of its files
  const contents = new Set(gone.map(({ content }) => content).filter((content) => !kept.has(content)));
  for (const { name, content } of await blobsOf(layout)) {
    if (contents.has(content)) await Deno.remove(layout.blob(name));
  }
  return { repository, commits: [commit], freed: before.bytes - (await describe(layout)).bytes };
}

async function describe(layout: Layout): Promise<CachedRepository> {
  const refs = await refsOf(layout);
  const sizes = new Map<string, number>(); // by content
  let incomplete = 0;
  for (const { name, size, content } of await blobsOf(layout)) {
    sizes.set(content, size);
    if (name.endsWith(".incomplete")) incomplete += size;
  }
  const revisions: CachedRevision[] = [];
  for (const commit of await namesIn(layout.snapshots)) {
    const entries = await entriesOf(layout, commit);
    for (const { content, size } of entries) sizes.set(content, size);
    revisions.push({
      commit,
      refs: refs.filter((ref) => ref.commit === commit).map(({ name }) => name),
      bytes: entries.reduce((sum, { size }) => sum + size, 0),
      files: entries.length,
      modified: new Date(Math.max(0, ...entries.map(({ modified }) => modified.getTime()))),
    });
  }
  return {
    repository: layout.repository,
    folder: layout.folder,
    bytes: [...sizes.values()].reduce((sum, size) => sum + size, 0),
    incomplete,
    revisions,
  };
}

async function blobsOf(layout: Layout): Promise<{ name: string; size: number; content: string }[]> {
  const blobs = [];
  for (const name of await namesIn(layout.blobs)) {
    const path = layout.blob(name);
    const info = await statOptional(path);
    if (info !== null) blobs.push({ name, size: info.size, content: contentOf(info, path) });
  }
  return blobs;
}

async function entriesOf(layout: Layout, commit: string): Promise<Entry[]> {
  const entries: Entry[] = [];
  const visit = async (folder: string) => {
    for (const name of await namesIn(folder)) {
      const path = `${folder}/${name}`;
      const info = await statOptional(path);
      if (info === null) continue; // a link to a content that is gone
      if (info.isDirectory) await visit(path);
      else {
        entries.push({
          path,
          size: info.size,
          modified: info.mtime ?? new Date(0),
          content: contentOf(info, path),
        });
      }
    }
  };
  await visit(layout.snapshot(commit));
  return entries;
}

/** Links, symbolic and hard, lead to one inode; systems without inodes have copies only. */
function contentOf({ dev, ino }: Deno.FileInfo, path: string): string {
  return ino ? `${dev}:${ino}` : path;
}

async function refsOf(layout: Layout): Promise<{ name: string; commit: string }[]> {
  const refs: { name: string; commit: string }[] = [];
  const visit = async (prefix: string) => {
    for (const entry of await namesIn(`${layout.refs}/${prefix}`)) {
      const name = prefix + entry;
      const commit = await layout.commitOf(name);
      if (commit !== null) refs.push({ name, commit });
      else if (await isFolder(`${layout.refs}/${name}`)) await visit(`${name}/`);
    }
  };
  await visit("");
  return refs;
}

/** Names of the entries of a folder, sorted; none where there is no folder. */
async function namesIn(folder: string): Promise<string[]> {
  try {
    return (await Array.fromAsync(Deno.readDir(folder))).map(({ name }) => name).sort();
  } catch (error) {
    if (isAbsent(error)) return [];
    throw error;
  }
}

async function statOptional(path: string): Promise<Deno.FileInfo | null> {
  try {
    return await Deno.stat(path);
  } catch (error) {
    if (isAbsent(error)) return null;
    throw error;
  }
}

function notCached(what: string, layout: Layout): HubError {
  return new HubError("not_cached", `${what} is not in the cache (${layout.folder}).`);
}
