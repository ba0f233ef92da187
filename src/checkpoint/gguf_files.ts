/** Opens the files of a GGUF model: one, or all parts of a split one, `NAME-00001-of-00003.gguf` and so on. */
import { CheckpointError } from "../errors.ts";
import { fileSource } from "./byte_source.ts";
import { type FileEntry, openFile, readRange } from "./files.ts";
import { type GgufHeader, parseGguf } from "./gguf.ts";
import { ggufConfig } from "./gguf_config.ts";
import type { GgufMetadata } from "./gguf_metadata.ts";
import { ggufPart, ggufParts } from "./gguf_parts.ts";
import { joinShards } from "./shards.ts";
import type { RawTensor } from "./tensor.ts";

/** Most parts of one model. */
const MAX_GGUF_PARTS = 1024;

const ROPE_FACTORS = "rope_freqs.weight";
const MAX_ROPE_BYTES = 1 << 18;

/** What the files of a model declare. */
export interface GgufFiles {
  /** In the order of their parts. */
  files: FileEntry[];
  /** Every tensor by name. */
  tensors: Map<string, RawTensor>;
  /** Of the first part. */
  metadata: GgufMetadata;
  /** The architecture in the words of `config.json`. */
  config: Record<string, unknown>;
}

/**
 * Reads the headers of `name` in `folder` and of the other parts, if it is one of several. Throws `CheckpointError` that
 * names the file: `missing_file` for a part that is not there, `invalid_gguf`, `unsupported_gguf`, `unknown_model_type`,
 * `invalid_config`.
 */
export async function readGgufFiles(folder: string, name: string): Promise<GgufFiles> {
  const names = partNames(name);
  const files: FileEntry[] = [];
  const headers: GgufHeader[] = [];
  for (const [index, part] of names.entries()) {
    using file = await openFile(folder, part);
    const header = parseGguf(fileSource(file), part, index);
    checkPart(header.metadata, index, names.length);
    headers.push(header);
    files.push({ path: file.path, size: file.size });
  }
  const { metadata } = headers[0];
  const tensors = joinShards(headers.map((header) => header.tensors), names);
  if (names.length > 1) {
    const declared = metadata.integer("split.tensors.count", tensors.size);
    if (declared !== tensors.size) {
      throw metadata.wrong("split.tensors.count", `${tensors.size}, the number of tensors in all parts`);
    }
  }
  const ropeFactors = await readFactors(files, tensors);
  return { files, tensors, metadata, config: ggufConfig({ metadata, tensors, ropeFactors }) };
}

/** The names of all parts of the model that `name` belongs to. */
function partNames(name: string): string[] {
  const { number, count } = ggufPart(name) ?? { number: 1, count: 1 };
  if (count < 1 || count > MAX_GGUF_PARTS || number < 1 || number > count) {
    throw new CheckpointError(
      "invalid_gguf",
      `${name} names part ${number} of ${count}; a model has 1 to ${MAX_GGUF_PARTS} parts.`,
    );
  }
  return ggufParts(name);
}

function checkPart(metadata: GgufMetadata, index: number, parts: number): void {
  const count = metadata.integer("split.count", parts === 1 ? 1 : undefined) || 1;
  if (count !== parts) {
    throw metadata.wrong(
      "split.count",
      parts === 1
        ? "1: this file is one part of several, which must keep their names, NAME-00001-of-00003.gguf and so on"
        : `${parts} as its name says`,
    );
  }
  if (parts > 1 && metadata.integer("split.no") !== index) {
    throw metadata.wrong("split.no", `${index} as its name says`);
  }
}

async function readFactors(
  files: FileEntry[],
  tensors: ReadonlyMap<string, RawTensor>,
): Promise<Float32Array | null> {
  const tensor = tensors.get(ROPE_FACTORS);
  if (tensor === undefined) return null;
  const { file, offset, length } = tensor.data;
  if (tensor.dtype !== "F32" || tensor.shape.length !== 1 || length > MAX_ROPE_BYTES) {
    throw new CheckpointError(
      "tensor_dtype",
      `Tensor "${ROPE_FACTORS}" is ${tensor.dtype} [${tensor.shape}]; it must be a list of F32. Convert the model again.`,
    );
  }
  using handle = await openFile(null, files[file].path);
  const bytes = new DataView((await readRange(handle, offset, length)).buffer);
  return Float32Array.from({ length: length / 4 }, (_, i) => bytes.getFloat32(4 * i, true));
}
