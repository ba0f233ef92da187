/** Quantises blocks of rows in a thread of its own; see `pool.ts`. */
import { type AffineFormat, type AffineRows, quantizeRows } from "./affine.ts";

/** What the thread is asked. */
export interface BlockRequest {
  values: Float32Array<ArrayBuffer>;
  columns: number;
  format: AffineFormat;
  importance: Float64Array | null | undefined;
}

/** What it answers. */
export type BlockAnswer = { rows: AffineRows } | { problem: string };

/** The part of a worker's global scope that is used here. */
interface Scope {
  onmessage: (event: MessageEvent<BlockRequest>) => void;
  postMessage(answer: BlockAnswer, transfer?: Transferable[]): void;
}

const scope = self as unknown as Scope;
scope.onmessage = ({ data: { values, columns, format, importance } }) => {
  try {
    const rows = quantizeRows(values, columns, format, importance);
    scope.postMessage({ rows }, [rows.words.buffer, rows.scales.buffer, rows.biases.buffer]);
  } catch (error) {
    scope.postMessage({ problem: String(error) });
  }
};
