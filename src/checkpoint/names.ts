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
  /^(model\.)?(vision_tower|audio_tower|vision_embedder|audio_embedder|embed_vision|embed_audio)\./;

/** Whether the tensor belongs to the vision or audio part. */
export function isMediaTensor(name: string): boolean {
  return MEDIA.test(name);
}

/** A module's or tensor's name without the writer's prefix; other names come back as they are. */
export function modulePath(name: string): string {
  if (isMediaTensor(name)) return name.replace(/^model\./, "");
  const prefix = TEXT_PREFIXES.find((candidate) => name.startsWith(candidate));
  return prefix === undefined ? name : name.slice(prefix.length);
}
