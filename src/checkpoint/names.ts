/** Tensor names of the different writers, brought to one spelling: `layers.0.self_attn.q_proj.weight`. */

// Longest first: `model.` alone is the prefix of text-only checkpoints.
const TEXT_PREFIXES = [
  "model.language_model.model.",
  "language_model.model.",
  "model.language_model.",
  "language_model.",
  "model.",
];

const MEDIA =
  /^(model\.)?(vision_tower|audio_tower|vision_embedder|audio_embedder|embed_vision|embed_audio|multi_modal_projector)\./;

/** How one writer names tensors. */
export interface Naming {
  /** What the sizes of the tensors are checked against, for messages. */
  config: string;
  /** Whether the tensor belongs to the vision or audio part. */
  isMedia(name: string): boolean;
  /** The path of a text tensor; names without one come back as they are. */
  pathOf(name: string): string;
  /** What this writer calls the tensor of a path, for messages. */
  nameOf(path: string): string;
}

/** Whether the tensor belongs to the vision or audio part. */
export function isMediaTensor(name: string): boolean {
  return MEDIA.test(name);
}

/** A module's or tensor's name without the writer's prefix; other names come back as they are. */
export function modulePath(name: string): string {
  if (isMediaTensor(name)) return name.replace(/^model\./, "");
  return name.slice(prefixOf(name).length);
}

/** How Hugging Face and MLX checkpoints name their tensors; `names` are those of all files. */
export function folderNaming(names: Iterable<string>): Naming {
  let prefix = "";
  for (const name of names) if (modulePath(name).startsWith("embed_tokens.")) prefix = prefixOf(name);
  return {
    config: "config.json",
    isMedia: isMediaTensor,
    pathOf: modulePath,
    nameOf: (path) => isMediaTensor(path) ? path : prefix + path,
  };
}

function prefixOf(name: string): string {
  return TEXT_PREFIXES.find((candidate) => name.startsWith(candidate)) ?? "";
}
