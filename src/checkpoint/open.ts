/** Opens a checkpoint on disk: reads headers and configs, never the bulk of the weights. */
import { CheckpointError, InvalidArgument } from "../errors.ts";
import { type ModelConfig, parseConfig } from "./config.ts";
import { type FileEntry, isFolder, listFiles, openFile, readRange, readText, sizeOf } from "./files.ts";
import { firstNonFinite } from "./finite.ts";
import { Fields } from "./fields.ts";
import { unreadKeys } from "./generation_config.ts";
import { ggufSuggestions } from "./gguf_config.ts";
import { readGgufFiles } from "./gguf_files.ts";
import type { GgufMetadata } from "./gguf_metadata.ts";
import { isProjector } from "./gguf_parts.ts";
import { ggufNaming } from "./gguf_names.ts";
import { CONFIG_LIMITS, parseStrictJson } from "./json.ts";
import type { Naming } from "./names.ts";
import { headerLength, parseHeader } from "./safetensors.ts";
import { checkAgainstIndex, joinShards, parseShardIndex, SHARD_INDEX } from "./shards.ts";
import type { RawTensor, WeightTensor } from "./tensor.ts";
import { type TowerWeights, towerWeights } from "./towers.ts";
import { type TextWeights, textWeights, vectorsOf } from "./weights.ts";

/** Most bytes that `readTensor` takes into memory. */
const MAX_READ_BYTES = 64 * 1024 * 1024;

/** Something about a checkpoint that a user should know but that does not stop it from running. */
export interface CheckpointWarning {
  /** What it is about. */
  code: "unexpected_tensors" | "generation_config_unread";
  /** For people. */
  message: string;
  /** Names of the tensors in question. */
  names: string[];
}

/** An open checkpoint. It holds no file handles. */
export interface Checkpoint {
  /** Folder of the files. */
  folder: string;
  /** The files that `FileRange.file` counts. */
  files: FileEntry[];
  /** Every tensor of every file by its name in the file. */
  tensors: ReadonlyMap<string, RawTensor>;
  /** The checked architecture. */
  config: ModelConfig;
  /** The JSON of `config.json`; of a GGUF file, what its metadata says in those words. */
  rawConfig: Record<string, unknown>;
  /** Metadata of a GGUF file, vocabulary and chat template among them; null for other checkpoints. */
  metadata: GgufMetadata | null;
  /** Grows when `weights` finds something. */
  warnings: CheckpointWarning[];
  /** The text network by role, built once. Throws `CheckpointError` that names what is missing or misshapen. */
  weights(): TextWeights;
  /** The vision and audio parts by role, built once. Throws as `weights`. */
  towers(): TowerWeights;
  /** The bytes of one small tensor (`MAX_READ_BYTES` at most). */
  readTensor(name: string): Promise<Uint8Array<ArrayBuffer>>;
  /** Reads the norms and scalars of `weights` and `towers` and throws `CheckpointError` that names the first with a NaN or Inf. */
  checkFinite(): Promise<void>;
}

/**
 * Opens a folder with `config.json` and safetensors files, one `.safetensors` file beside its `config.json`, a `.gguf`
 * file (any part of a split one), or a folder that holds one. Throws `CheckpointError`, or `MissingPermission` with the
 * flag that is missing.
 */
export async function openCheckpoint(source: string): Promise<Checkpoint> {
  const place = await locate(source);
  const { folder } = place;
  const { files, tensors, config, rawConfig, naming, metadata, unread = [] } = place.kind === "gguf"
    ? await openGguf(folder, place.file)
    : await openFolder(folder, place.file);

  const warnings: CheckpointWarning[] = [];
  if (unread.length > 0) {
    warnings.push({
      code: "generation_config_unread",
      message: `generation_config.json asks for what is not done: ${unread.join(", ")}.`,
      names: unread,
    });
  }
  const warnOf = ({ unexpected }: { unexpected: string[] }) => {
    if (unexpected.length === 0) return;
    warnings.push({
      code: "unexpected_tensors",
      message: `${unexpected.length} tensors have no role in this model and are not used.`,
      names: unexpected,
    });
  };
  let built: TextWeights | null = null;
  const weights = (): TextWeights => {
    if (built !== null) return built;
    warnOf(built = textWeights(tensors.values(), config, naming));
    return built;
  };
  let builtTowers: TowerWeights | null = null;
  const towers = (): TowerWeights => {
    if (builtTowers !== null) return builtTowers;
    warnOf(builtTowers = towerWeights(tensors.values(), config));
    return builtTowers;
  };
  return {
    folder,
    files,
    tensors,
    config,
    rawConfig,
    metadata,
    warnings,
    weights,
    towers,
    readTensor: (name) => readTensor(files, tensors, name),
    checkFinite: async () => await checkFinite(files, [...vectorsOf(weights()), ...vectorsOf(towers())]),
  };
}

/**
 * Reads only what explains an architecture: the configs of a folder, whose weights need not be there, or the header of a
 * GGUF file, which tells the weights too. Throws like `openCheckpoint`.
 */
export async function readConfig(
  source: string,
): Promise<Pick<Checkpoint, "config" | "rawConfig"> & Partial<Pick<Checkpoint, "weights">>> {
  const place = await locate(source);
  return place.kind === "gguf" ? await openCheckpoint(source) : await configOf(place.folder);
}

/** What the files of a checkpoint say, whatever their kind. */
interface Opened extends Pick<Checkpoint, "files" | "tensors" | "config" | "rawConfig" | "metadata"> {
  naming?: Naming;
  /** of `generation_config.json` */ unread?: string[];
}

async function openGguf(folder: string, file: string): Promise<Opened> {
  const { files, tensors, metadata, config } = await readGgufFiles(folder, file);
  return {
    files,
    tensors,
    metadata,
    // Writers of this format store norms as they are applied.
    config: { ...parseConfig(config, ggufSuggestions(metadata), file), normWeightOffset: 0 },
    rawConfig: config,
    naming: ggufNaming(tensors.keys()),
  };
}

async function openFolder(folder: string, file: string | null): Promise<Opened> {
  const { config, rawConfig, unread } = await configOf(folder);
  const index = file === null ? await readText(folder, SHARD_INDEX, true) : null;
  const shardOf = index === null ? null : parseShardIndex(index);
  const names = shardOf !== null
    ? [...new Set(shardOf.values())].sort()
    : [file ?? await findSingleFile(folder)];
  const { files, tensors } = await readHeaders(folder, names);
  if (shardOf !== null) checkAgainstIndex(tensors, shardOf, names);
  return { files, tensors, config, rawConfig, metadata: null, unread };
}

async function configOf(
  folder: string,
): Promise<Pick<Checkpoint, "config" | "rawConfig"> & { unread: string[] }> {
  const rawConfig = await readJson(folder, "config.json", false);
  const generation = await readJson(folder, "generation_config.json", true);
  return {
    config: parseConfig(rawConfig, generation),
    rawConfig: rawConfig as Record<string, unknown>,
    unread: generation === null ? [] : unreadKeys(Fields.of(generation)),
  };
}

async function readJson(folder: string, name: string, optional: boolean): Promise<unknown> {
  const text = await readText(folder, name, optional);
  return text === null ? null : parseStrictJson(text, "invalid_config", name, CONFIG_LIMITS);
}

/** Where the files are: of a folder, the one file that the source names, if it does. */
type Place = { kind: "folder"; folder: string; file: string | null } | {
  kind: "gguf";
  folder: string;
  file: string;
};

/** Splits a source into its folder and, if it names one file, that file. */
async function locate(source: string): Promise<Place> {
  if (source.endsWith(".safetensors") || source.endsWith(".gguf")) {
    const slash = Math.max(
      source.lastIndexOf("/"),
      Deno.build.os === "windows" ? source.lastIndexOf("\\") : -1,
    );
    const folder = slash < 0 ? "." : source.slice(0, slash) || "/";
    const kind = source.endsWith(".gguf") ? "gguf" : "folder";
    if (!await isFolder(source, folder)) return { kind, folder, file: source.slice(slash + 1) };
  }
  if (await sizeOf(source, source) !== null) {
    throw new CheckpointError(
      "unsupported_file",
      `${source} is neither a folder nor a .safetensors or .gguf file. Name the folder that holds config.json.`,
    );
  }
  const gguf = await findGguf(source);
  return gguf === null
    ? { kind: "folder", folder: source, file: null }
    : { kind: "gguf", folder: source, file: gguf };
}

/** The GGUF model of a folder without a safetensors model; null where there is none. Media projectors are no models. */
async function findGguf(folder: string): Promise<string | null> {
  if (!await isFolder(folder, folder)) return null;
  const names = await listFiles(folder);
  if (names.includes("config.json") && names.some((name) => name.endsWith(".safetensors"))) return null;
  const models = names.filter((name) => name.endsWith(".gguf") && !isProjector(name));
  const firsts = models.filter((name) =>
    !/-\d{5}-of-\d{5}\.gguf$/.test(name) || /-00001-of-\d{5}\.gguf$/.test(name)
  );
  if (firsts.length > 1) {
    throw new CheckpointError(
      "unsupported_file",
      `${folder} holds ${firsts.length} GGUF models: ${firsts.join(", ")}. Name one of them.`,
    );
  }
  return firsts[0] ?? models[0] ?? null;
}

/** The one safetensors file of a folder without an index. */
async function findSingleFile(folder: string): Promise<string> {
  const names = (await listFiles(folder)).filter((name) => name.endsWith(".safetensors"));
  if (names.includes("model.safetensors")) return "model.safetensors";
  if (names.length === 1) return names[0];
  throw new CheckpointError(
    "missing_file",
    names.length === 0
      ? `${folder} holds no .safetensors file. Download the weights too.`
      : `${folder} holds ${names.length} .safetensors files but no ${SHARD_INDEX}. Download the index too.`,
  );
}

async function readHeaders(
  folder: string,
  names: string[],
): Promise<{ files: FileEntry[]; tensors: Map<string, RawTensor> }> {
  const files: FileEntry[] = [];
  const shards: RawTensor[][] = [];
  for (const [index, name] of names.entries()) {
    using file = await openFile(folder, name);
    const prefix = await readRange(file, 0, Math.min(8, file.size));
    const length = headerLength(prefix, file.size, name);
    shards.push(parseHeader(await readRange(file, 8, length), file.size, name, index).tensors);
    files.push({ path: file.path, size: file.size });
  }
  return { files, tensors: joinShards(shards, names) };
}

async function readTensor(
  files: FileEntry[],
  tensors: ReadonlyMap<string, RawTensor>,
  name: string,
): Promise<Uint8Array<ArrayBuffer>> {
  const tensor = tensors.get(name);
  if (tensor === undefined) {
    throw new CheckpointError("missing_tensor", `Tensor "${name}" is missing from the checkpoint.`);
  }
  const { file, offset, length } = tensor.data;
  if (length > MAX_READ_BYTES) {
    throw new InvalidArgument(
      `Tensor "${name}" has ${length} bytes; readTensor takes ${MAX_READ_BYTES} at most.`,
    );
  }
  using handle = await openFile(null, files[file].path);
  return await readRange(handle, offset, length);
}

async function checkFinite(files: FileEntry[], vectors: readonly WeightTensor[]): Promise<void> {
  for (const [index, entry] of files.entries()) {
    const own = vectors.filter((vector) => vector.parts.data.file === index);
    if (own.length === 0) continue;
    using handle = await openFile(null, entry.path);
    for (const { name, format, parts } of own) {
      const bad = firstNonFinite(await readRange(handle, parts.data.offset, parts.data.length), format);
      if (bad !== null) {
        throw new CheckpointError(
          "not_finite",
          `Tensor "${name}" is ${bad.value} at element ${bad.index}; a norm or scalar must be finite. ` +
            `Download or convert the checkpoint again.`,
        );
      }
    }
  }
}
