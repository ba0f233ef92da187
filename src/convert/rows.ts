/** Rows of stored weights as f32 numbers, a few at a time. */
import { type OpenFile, openFile, readRange } from "../checkpoint/files.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import type { FileRange, WeightTensor } from "../checkpoint/tensor.ts";
import { dequantizeRow } from "../conformance/oracle/dequantize.ts";

/** Opens the files of a checkpoint when they are first read. */
export class RowReader implements Disposable {
  readonly #files = new Map<number, OpenFile>();

  constructor(private readonly checkpoint: Pick<Checkpoint, "files">) {}

  /** The file of an index; it closes with the reader. */
  async file(index: number): Promise<OpenFile> {
    let file = this.#files.get(index);
    if (file === undefined) {
      this.#files.set(index, file = await openFile(null, this.checkpoint.files[index].path));
    }
    return file;
  }

  /** Rows [first, first + count) of a plain or GGUF weight, f32 [count, columns]; leading dimensions count as rows. */
  async rows(weight: WeightTensor, first: number, count: number): Promise<Float32Array<ArrayBuffer>> {
    const columns = weight.shape.at(-1)!;
    const { data } = weight.parts;
    const rowBytes = data.length / weight.shape.slice(0, -1).reduce((product, size) => product * size, 1);
    const bytes = await readRange(
      await this.file(data.file),
      data.offset + first * rowBytes,
      count * rowBytes,
    );
    const values = toF32(bytes, weight, count, columns);
    if (weight.addend !== undefined) { for (let i = 0; i < values.length; i++) values[i] += weight.addend; }
    return values;
  }

  /** Bytes as they are stored. */
  async bytes({ file, offset, length }: FileRange): Promise<Uint8Array<ArrayBuffer>> {
    return await readRange(await this.file(file), offset, length);
  }

  [Symbol.dispose](): void {
    for (const file of this.#files.values()) file[Symbol.dispose]();
    this.#files.clear();
  }
}

function toF32(
  bytes: Uint8Array<ArrayBuffer>,
  { format }: WeightTensor,
  rows: number,
  columns: number,
): Float32Array<ArrayBuffer> {
  if (format.kind === "f32") return new Float32Array(bytes.buffer);
  if (format.kind === "f16") return new Float32Array(new Float16Array(bytes.buffer));
  const values = new Float32Array(rows * columns);
  if (format.kind === "bf16") {
    const words = new Uint16Array(bytes.buffer), wide = new Uint32Array(values.buffer);
    for (let i = 0; i < words.length; i++) wide[i] = words[i] << 16;
    return values;
  }
  for (let row = 0; row < rows; row++) {
    values.set(dequantizeRow({ data: bytes }, format, null, columns, row), row * columns);
  }
  return values;
}
