/** What sequences put into one forward, and its rows. */
import type { TokenKey } from "../cache/prefix.ts";
import type { Sequence } from "../cache/sequence.ts";
import type { Adjustments } from "../sample/adjustments.ts";
import type { SamplingOptions } from "../sample/sampler.ts";
import type { InputRow, OutputRow } from "./input.ts";
import { type EmbeddedMedia, mediaAt, type PlacedMedia } from "./placed.ts";

/** What a row asks of the device beside its logits. */
export interface RowRequest extends Omit<OutputRow, "row"> {
  /**
   * how the token after the row is drawn, where `canFollow` and the sequence most likely goes on with it: the forward after this one
   * may then begin before `take` was called
   */
  draw?: RowDraw;
}

/** How a token is drawn that most likely follows. */
export interface RowDraw {
  options: SamplingOptions;
  /** what the token changes of the row's adjustments */ adjustments: Adjustments;
}

/** Rows of one sequence in a forward; the sequence has room for them. */
export interface Part {
  sequence: Sequence;
  /** what follows the stored tokens */ tokens: readonly number[];
  rowClass: InputRow["rowClass"];
  /** of the last rows, which produce output */ requests: readonly RowRequest[];
  /** outputs that they need */ mask: number;
  /** of the timeline, all but those that end before the tokens */ media?: readonly EmbeddedMedia[];
}

/** How to run a prompt. */
export interface PrefillOptions {
  /** rows at the end that produce output */ outputs: number;
  mask: number;
  /** what the last row asks for */ last?: RowRequest;
  /** of the whole timeline, stored tokens included; the prefix cache keeps its pages */ keys?:
    readonly TokenKey[];
  /** of the whole timeline; ids at their places are placeholders */ media?: readonly PlacedMedia[];
  signal?: AbortSignal;
}

/** A prompt whose media are embedded. */
export interface EmbeddedPrefill extends Omit<PrefillOptions, "media"> {
  /** all but those that end before the prompt */ media?: readonly EmbeddedMedia[];
}

/** How rows of soft tokens go into a forward. */
export interface SoftRows {
  /** rows see whole pictures in some layers */ blocks: boolean;
  /** id that stands for media in embeddings */ pad: number;
  /** numbers of a soft token */ width: number;
}

/** The rows of a forward. */
export interface Gathered {
  rows: InputRow[];
  /** of the rows that produce output */ outputs: OutputRow[];
  /** outputs that some part needs */ mask: number;
  /** the soft tokens that rows name by their index */ soft: Float32Array[];
}

/** The rows of all parts, one part after the other. `media`: of models that see or hear. */
export function gather(parts: readonly Part[], media: SoftRows | undefined): Gathered {
  const gathered: Gathered = { rows: [], outputs: [], mask: 0, soft: [] };
  const { rows, outputs, soft } = gathered;
  for (let index = 0; index < parts.length; index++) {
    const { sequence, tokens, rowClass, requests, mask, media: placed } = parts[index];
    const firstOutput = rows.length + tokens.length - requests.length;
    for (let i = 0; i < tokens.length; i++) {
      const row = { token: tokens[i], position: sequence.length + i, sequence: index, rowClass };
      rows.push(placed ? softRow(row, placed, media!, soft) : row);
    }
    for (let i = 0; i < requests.length; i++) outputs.push({ ...requests[i], row: firstOutput + i });
    if (requests.length > 0) gathered.mask |= mask;
  }
  return gathered;
}

/** A row whose token may be a placeholder; its soft token is added to `soft`. */
function softRow(
  row: InputRow,
  media: readonly EmbeddedMedia[],
  { pad, width, blocks }: SoftRows,
  soft: Float32Array[],
): InputRow {
  const at = mediaAt(media, row.position);
  if (at === undefined) return row;
  const { start, soft: { values, tokens } } = at;
  const index = row.position - start;
  soft.push(values.subarray(index * width, (index + 1) * width));
  const block = blocks && at.block && tokens > 1 ? [start, start + tokens - 1] as const : undefined;
  return { ...row, token: pad, soft: soft.length - 1, block };
}
