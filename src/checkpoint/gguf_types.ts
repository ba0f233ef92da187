/** The block formats of GGUF: rows are runs of blocks, each with its own scales and packed codes. */

/** One block format that the kernels read. */
export type GgufType =
  | "q4_0"
  | "q4_1"
  | "q5_0"
  | "q5_1"
  | "q8_0"
  | "q2_k"
  | "q3_k"
  | "q4_k"
  | "q5_k"
  | "q6_k"
  | "iq4_nl"
  | "iq4_xs";

/** Number and sizes of a block format. */
export interface GgufBlock {
  /** Type number in the file. */
  readonly number: number;
  /** Elements of one block; a row is a whole number of blocks. */
  readonly elements: number;
  /** Bytes of one block. Blocks follow each other without gaps, at even offsets. */
  readonly bytes: number;
}

/** Alignment of a block in bytes. */
export const GGUF_BLOCK_ALIGNMENT: number = 2;

/** Every block format by name. */
export const GGUF_BLOCKS: Readonly<Record<GgufType, GgufBlock>> = {
  q4_0: { number: 2, elements: 32, bytes: 18 },
  q4_1: { number: 3, elements: 32, bytes: 20 },
  q5_0: { number: 6, elements: 32, bytes: 22 },
  q5_1: { number: 7, elements: 32, bytes: 24 },
  q8_0: { number: 8, elements: 32, bytes: 34 },
  q2_k: { number: 10, elements: 256, bytes: 84 },
  q3_k: { number: 11, elements: 256, bytes: 110 },
  q4_k: { number: 12, elements: 256, bytes: 144 },
  q5_k: { number: 13, elements: 256, bytes: 176 },
  q6_k: { number: 14, elements: 256, bytes: 210 },
  iq4_nl: { number: 20, elements: 32, bytes: 18 },
  iq4_xs: { number: 23, elements: 256, bytes: 136 },
};
