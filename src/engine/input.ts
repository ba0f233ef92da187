/** Writes the input block of one run: `dylib/input.h` has the byte layout and what is checked. */

/** One row of a forward: a token at a position of a sequence. */
export interface InputRow {
  token: number;
  /** absolute position in its sequence */ position: number;
  /** index into `sequences` */ sequence: number;
  rowClass: "prefill" | "decode";
  /** row of the plan's soft tokens that replaces the token's embedding */ soft?: number;
  /** first and last position of the image or video block that the row belongs to; all of it is in one run */
  block?: readonly [number, number];
}

/** The page table of one sequence in one page group. */
export interface PageTable {
  /** page index (position / 32) of the first entry */ first: number;
  /** page ids; `NO_PAGE` where the sequence holds none */ pages: ArrayLike<number>;
}

/** A change to one logit before candidates are taken: (l > 0 ? l · multiply : l / multiply) + add. */
export interface Adjustment {
  id: number;
  multiply: number;
  add: number;
}

/** What one output row asks of the candidates op. */
export interface OutputRow {
  /** index into `rows` */ row: number;
  /** ascending ids */ adjustments?: readonly Adjustment[];
  /** > 0; default 1 */ temperature?: number;
  /** one bit per token, set where allowed; ⌈vocabulary / 32⌉ words */ mask?: Uint32Array;
}

/** All inputs of one run. */
export interface RunInput {
  rows: readonly InputRow[];
  /** ascending by row */ outputs: readonly OutputRow[];
  /** sequences[s][g]: page table of sequence s in page group g */ sequences:
    readonly (readonly PageTable[])[];
  /** KV page groups of the plan */ groups: number;
  vocabularySize: number;
  /** bit i copies out output i of the plan */ outputMask: number;
}

/** Page id of an absent page. */
export const NO_PAGE = 0xffffffff;

/** Bits of the header that say which arrays follow the masks. */
const EXTRAS = { soft: 1, blocks: 2 } as const;

/** Words before the arrays: tokens of all rows, then their positions, and the rest. */
export const HEADER_WORDS = 16;

/** The bytes that `mb_pass_run` takes. */
export function encodeInput(input: RunInput): Uint8Array<ArrayBuffer> {
  const { rows, outputs, sequences, groups } = input;
  const masks: Uint32Array[] = [];
  const maskWords = Math.ceil(input.vocabularySize / 32);
  let adjustments = 0, entries = 0;
  for (const output of outputs) {
    if (output.adjustments) adjustments += output.adjustments.length;
    if (output.mask && !masks.includes(output.mask)) masks.push(output.mask);
  }
  let hasSoft = false, hasBlocks = false;
  for (const row of rows) {
    hasSoft ||= row.soft !== undefined;
    hasBlocks ||= row.block !== undefined;
  }
  const extraWords = (hasSoft ? rows.length : 0) + (hasBlocks ? 2 * rows.length : 0);
  for (const tables of sequences) for (const table of tables) entries += table.pages.length;
  const words = new Uint32Array(
    HEADER_WORDS + 4 * rows.length + outputs.length + 3 * groups * sequences.length + entries +
      (outputs.length + 1) + 3 * adjustments + 2 * outputs.length + masks.length * maskWords + extraWords,
  );
  const floats = new Float32Array(words.buffer);
  words[0] = 0x4e49424d;
  words[1] = 1;
  words[2] = rows.length;
  words[3] = outputs.length;
  words[4] = sequences.length;
  words[5] = entries;
  words[6] = input.outputMask;
  words[7] = adjustments;
  words[8] = masks.length;
  words[9] = (hasSoft ? EXTRAS.soft : 0) | (hasBlocks ? EXTRAS.blocks : 0);
  let at = HEADER_WORDS;
  for (const row of rows) words[at++] = row.token;
  for (const row of rows) words[at++] = row.position;
  for (const row of rows) words[at++] = row.sequence;
  for (const row of rows) words[at++] = row.rowClass === "decode" ? 1 : 0;
  for (const output of outputs) words[at++] = output.row;
  let entry = 0;
  for (let g = 0; g < groups; g++) {
    for (const sequence of sequences) {
      words[at++] = entry;
      entry += sequence[g].pages.length;
    }
    for (const sequence of sequences) words[at++] = sequence[g].first;
    for (const sequence of sequences) words[at++] = sequence[g].pages.length;
  }
  for (let g = 0; g < groups; g++) {
    for (const sequence of sequences) {
      const { pages } = sequence[g];
      for (let i = 0; i < pages.length; i++) words[at++] = pages[i];
    }
  }
  let start = 0;
  for (const output of outputs) {
    words[at++] = start;
    start += output.adjustments?.length ?? 0;
  }
  words[at++] = start;
  if (adjustments > 0) {
    for (const output of outputs) for (const a of output.adjustments ?? []) words[at++] = a.id;
    for (const output of outputs) for (const a of output.adjustments ?? []) floats[at++] = a.multiply;
    for (const output of outputs) for (const a of output.adjustments ?? []) floats[at++] = a.add;
  }
  for (const output of outputs) floats[at++] = output.temperature ?? 1;
  for (const output of outputs) words[at++] = output.mask ? masks.indexOf(output.mask) : NO_PAGE;
  for (const mask of masks) {
    words.set(mask, at);
    at += maskWords;
  }
  if (hasSoft) { for (const row of rows) words[at++] = row.soft ?? NO_PAGE; }
  if (hasBlocks) {
    for (const row of rows) words[at++] = row.block?.[0] ?? row.position;
    for (const row of rows) words[at++] = row.block?.[1] ?? row.position;
  }
  return new Uint8Array(words.buffer);
}
