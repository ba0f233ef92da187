/** All that a load reads of a model's files before it opens a device: headers, configs and small tensors, never the bulk. */
import { type Checkpoint, openCheckpoint } from "../checkpoint/open.ts";
import { type ClipBounds, readClips, type StoredClip, type TowerWeights } from "../checkpoint/towers.ts";
import type { TextWeights } from "../checkpoint/weights.ts";
import { readProcessor } from "./media.ts";
import { openText, type TextParts } from "./open_text.ts";
import { weightsFingerprint } from "./receipt.ts";

/** What was read. */
export interface ReadModel {
  checkpoint: Checkpoint;
  weights: TextWeights;
  towerWeights: TowerWeights;
  /** bounds of every clipped linear of the towers */ clips: ReadonlyMap<StoredClip, ClipBounds>;
  /** it sees or hears */ takesMedia: boolean;
  text: TextParts;
  /** JSON of `processor_config.json`, or null */ processor: unknown;
  /** see `weightsFingerprint` */ fingerprint: string;
}

/** Reads the model at a path. Rejects with `CheckpointError`, `TokenizerError`, `TemplateError` or the signal's reason. */
export async function readModel(path: string, signal: AbortSignal | undefined): Promise<ReadModel> {
  const checkpoint = await openCheckpoint(path);
  const weights = checkpoint.weights();
  const towerWeights = checkpoint.towers();
  await checkpoint.checkFinite();
  const clips = await readClips(checkpoint.files, towerWeights);
  const [text, processor, fingerprint] = await Promise.all([
    openText(checkpoint, signal),
    readProcessor(checkpoint),
    weightsFingerprint(checkpoint),
  ]);
  signal?.throwIfAborted();
  const takesMedia = towerWeights.vision !== null || towerWeights.audio !== null;
  return { checkpoint, weights, towerWeights, clips, takesMedia, text, processor, fingerprint };
}
