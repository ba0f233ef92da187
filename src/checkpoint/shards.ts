/** `model.safetensors.index.json`: which file of a sharded checkpoint holds which tensor. */
import { CheckpointError } from "../errors.ts";
import { parseStrictJson } from "./json.ts";
import { MAX_TENSORS } from "./safetensors.ts";
import type { RawTensor } from "./tensor.ts";

/** Name of the index beside the shards. */
export const SHARD_INDEX: string = "model.safetensors.index.json";
/** Most shards of one checkpoint. */
const MAX_SHARDS = 4096;

const INVALID = "invalid_shard_index";

/**
 * Parses the text of an index. Returns tensor name → shard file name; each file name is a plain one, so that no
 * index can point outside its folder. Throws `CheckpointError`.
 */
export function parseShardIndex(text: string): Map<string, string> {
  const index = parseStrictJson(text, INVALID, SHARD_INDEX, { depth: 8, items: MAX_TENSORS * 2 });
  const map = (index as Record<string, unknown> | null)?.weight_map;
  if (typeof map !== "object" || map === null || Array.isArray(map)) {
    throw new CheckpointError(INVALID, `${SHARD_INDEX} has no "weight_map" object. Download the file again.`);
  }
  const shardOf = new Map<string, string>();
  for (const [name, shard] of Object.entries(map)) {
    if (typeof shard !== "string" || !isPlainFileName(shard)) {
      throw new CheckpointError(
        INVALID,
        `${SHARD_INDEX} puts tensor "${name}" into ${
          JSON.stringify(shard)
        }, which is not the plain name of a ` +
          `.safetensors file in the same folder.`,
      );
    }
    shardOf.set(name, shard);
  }
  if (shardOf.size === 0) throw new CheckpointError(INVALID, `${SHARD_INDEX} names no tensor.`);
  const shards = new Set(shardOf.values()).size;
  if (shards > MAX_SHARDS) {
    throw new CheckpointError(INVALID, `${SHARD_INDEX} names ${shards} files; the limit is ${MAX_SHARDS}.`);
  }
  return shardOf;
}

/**
 * Joins the tensors of all files under their names. Throws `CheckpointError` if two files hold the same name.
 * `files` are the names that errors use, in the order of the file indices.
 */
export function joinShards(shards: RawTensor[][], files: readonly string[]): Map<string, RawTensor> {
  const tensors = new Map<string, RawTensor>();
  for (const tensor of shards.flat()) {
    const other = tensors.get(tensor.name);
    if (other !== undefined) {
      throw new CheckpointError(
        INVALID,
        `Tensor "${tensor.name}" is in two files, ${files[other.data.file]} and ${
          files[tensor.data.file]
        }. ` +
          `Remove the shard that does not belong to this checkpoint.`,
      );
    }
    tensors.set(tensor.name, tensor);
  }
  return tensors;
}

/** Checks that each shard holds what the index says it holds, and that the index left nothing out. */
export function checkAgainstIndex(
  tensors: ReadonlyMap<string, RawTensor>,
  shardOf: ReadonlyMap<string, string>,
  files: readonly string[],
): void {
  for (const [name, shard] of shardOf) {
    const tensor = tensors.get(name);
    if (tensor === undefined || files[tensor.data.file] !== shard) {
      throw new CheckpointError(
        INVALID,
        `${SHARD_INDEX} says that tensor "${name}" is in ${shard}, but it is ${
          tensor === undefined ? "nowhere" : `in ${files[tensor.data.file]}`
        }. Download ${shard} again.`,
      );
    }
  }
  for (const name of tensors.keys()) {
    if (!shardOf.has(name)) {
      throw new CheckpointError(
        INVALID,
        `${
          files[tensors.get(name)!.data.file]
        } holds tensor "${name}", which ${SHARD_INDEX} does not list. ` +
          `Download both files from the same revision.`,
      );
    }
  }
}

function isPlainFileName(name: string): boolean {
  return /^[^/\\\0:]{1,255}$/.test(name) && !name.startsWith(".") && name.endsWith(".safetensors");
}
