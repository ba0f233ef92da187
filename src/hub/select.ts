/** Which files of a repository make a model: pure functions over names. */
import { ggufParts, isProjector } from "../checkpoint/gguf_parts.ts";
import { SHARD_INDEX } from "../checkpoint/shards.ts";
import { HubError } from "../errors.ts";

/** A file that can be chosen. */
export interface Candidate {
  name: string;
  /** in bytes */ size?: number;
}

/** What is wanted of a repository. */
export interface Choice {
  /** what to hand to the loader: a file, or a folder ("" is the whole repository) */ path: string;
  /** files to have, small ones first */ files: string[];
  /** an index that names more files; they lie beside it */ index: string | null;
}

/** Read beside the weights of a folder. */
export const SIDE_FILES: readonly string[] = [
  "config.json",
  "generation_config.json",
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "chat_template.jinja",
  "chat_template.json",
  "processor_config.json",
  "preprocessor_config.json",
  "video_preprocessor_config.json",
];
/** Enough to explain a model. */
const CONFIG_FILES = ["config.json", "generation_config.json"];

/**
 * Chooses the files of a model. `file` is a file or folder inside the repository, `what` names the repository in
 * messages; with `configOnly` no weights. Throws `HubError`: `file_not_found`, `choose_file` with the alternatives,
 * or `unsupported_repository`.
 */
export function chooseFiles(
  files: readonly Candidate[],
  file: string | undefined,
  what: string,
  configOnly = false,
): Choice {
  const names = new Set(files.map(({ name }) => name));
  if (file !== undefined && names.has(file)) return chooseFile(names, file, configOnly);
  const inside = file === undefined ? files : files.filter(({ name }) => name.startsWith(`${file}/`));
  if (inside.length === 0) {
    const known = [...names].filter((name) => /\.(gguf|safetensors)$/.test(name));
    throw new HubError(
      "file_not_found",
      file === undefined
        ? `${what} is empty.`
        : `${what} has no ${file}.${known.length > 0 ? ` Its weights are ${list(known)}.` : ""}`,
    );
  }
  const folder = file ?? "";
  const own = inside.filter(({ name }) => !name.slice(prefixOf(folder).length).includes("/"));
  return chooseFolder(own, inside, folder, what, configOnly);
}

function chooseFile(names: ReadonlySet<string>, file: string, configOnly: boolean): Choice {
  const parts = ggufParts(file);
  if (file.endsWith(".gguf")) return { path: parts[0], files: parts, index: null };
  if (!file.endsWith(".safetensors")) return { path: file, files: [file], index: null };
  const side = sideFiles(names, file.slice(0, file.lastIndexOf("/") + 1), configOnly);
  return { path: file, files: configOnly ? side : [...side, file], index: null };
}

function chooseFolder(
  own: readonly Candidate[],
  inside: readonly Candidate[],
  folder: string,
  what: string,
  configOnly: boolean,
): Choice {
  const prefix = prefixOf(folder);
  const names = new Set(own.map(({ name }) => name));
  const side = sideFiles(names, prefix, configOnly);
  const folderOf = (files: string[], index: string | null): Choice => ({ path: folder, files, index });
  if (configOnly && names.has(`${prefix}config.json`)) return folderOf(side, null);
  const index = prefix + SHARD_INDEX;
  if (names.has(index)) return folderOf([...side, index], index);
  const weights = own.filter(({ name }) => name.endsWith(".safetensors"));
  const usual = `${prefix}model.safetensors`;
  if (names.has(usual)) return folderOf([...side, usual], null);
  if (weights.length === 1) return folderOf([...side, weights[0].name], null);
  if (weights.length > 1) throw ambiguous(what, weights);

  const models = inside.filter(({ name }) => name.endsWith(".gguf") && !isProjector(name));
  const heads = models.filter(({ name }) => ggufParts(name)[0] === name);
  if (heads.length === 1) {
    const parts = ggufParts(heads[0].name);
    return { path: parts[0], files: parts, index: null };
  }
  if (heads.length > 1) {
    throw ambiguous(
      what,
      heads.map(({ name }) => ({
        name,
        size: ggufParts(name).reduce(
          (sum, part) => sum + (models.find((m) => m.name === part)?.size ?? 0),
          0,
        ),
      })),
    );
  }
  const others = inside.filter(({ name }) => /\.(bin|pth|pt|onnx|h5|msgpack|npz)$/.test(name));
  throw new HubError(
    "unsupported_repository",
    `${what} has no .safetensors or .gguf file${
      others.length > 0 ? `, only ${list(others.map(({ name }) => name))}` : ""
    }. Use a repository that has the model in one of these formats.`,
  );
}

function sideFiles(names: ReadonlySet<string>, prefix: string, configOnly: boolean): string[] {
  return (configOnly ? CONFIG_FILES : SIDE_FILES).map((name) => prefix + name).filter((name) =>
    names.has(name)
  );
}

function prefixOf(folder: string): string {
  return folder === "" ? "" : `${folder}/`;
}

function ambiguous(what: string, files: readonly Candidate[]): HubError {
  const lines = [...files].sort((a, b) => (a.size ?? 0) - (b.size ?? 0)).map(({ name, size }) =>
    `\n  ${name}${size ? ` (${(size / 1e9).toPrecision(3)} GB)` : ""}`
  );
  return new HubError(
    "choose_file",
    `${what} has ${files.length} files of weights. Name the one to use, as in ${what}/${files[0].name}:${
      lines.join("")
    }`,
  );
}

function list(names: string[]): string {
  return names.length <= 8
    ? names.join(", ")
    : `${names.slice(0, 8).join(", ")} and ${names.length - 8} more`;
}
