/** The pieces in which outputs are read, turned into what will be written, and written. */
import { toBf16 } from "./affine.ts";
import type { QuantizePool } from "./pool.ts";
import type { RowReader } from "./rows.ts";
import type { InputStatistics } from "./statistics.ts";
import type { Output, Part } from "./tensors.ts";
import type { FolderWriter } from "./writer.ts";

/** Numbers of one piece; what is in memory at a time is a small multiple of it. */
const BLOCK_NUMBERS = 2 ** 20;

/** A piece of an output: numbers that are being prepared, and how to write them. */
export interface Block {
  work: Promise<{ numbers: number; write(): Promise<void> }>;
}

/** The pieces of one output, read one after the other. */
export async function* blocksOf(
  writer: FolderWriter,
  reader: RowReader,
  pool: QuantizePool,
  output: Output,
  statistics: InputStatistics | null,
): AsyncGenerator<Block, void, undefined> {
  const ready = (numbers: number, name: string, at: number, bytes: ArrayBufferView<ArrayBuffer>): Block => ({
    work: Promise.resolve({ numbers, write: () => writer.write(name, at, bytes) }),
  });
  if (output.kind === "vector") {
    yield ready(output.weight.shape[0], output.name, 0, await vectorOf(reader, output));
    return;
  }
  if (output.kind === "copied") {
    for await (const { at, bytes, numbers } of stored(reader, output)) {
      yield ready(numbers, output.name, at, bytes);
    }
    return;
  }
  const { part, shape } = output;
  const columns = shape.at(-1)!;
  // Matrices that no text was multiplied with, such as tables, are searched with all columns alike.
  const importance = statistics === null ? undefined : statistics.get(part.weight) ?? null;
  for await (const { values, at } of rowsOf(reader, part, columns)) {
    const numbers = values.length;
    if (output.kind === "rounded") {
      yield ready(numbers, output.name, at * columns * 2, Uint16Array.from(values, toBf16));
      continue;
    }
    const { module, format } = output;
    const { bits, groupSize } = format;
    yield {
      work: pool.run({ values, columns, format, importance }).then(({ words, scales, biases }) => ({
        numbers,
        async write() {
          await writer.write(`${module}.weight`, at * columns * bits / 8, words);
          await writer.write(`${module}.scales`, at * columns / groupSize * 2, scales);
          await writer.write(`${module}.biases`, at * columns / groupSize * 2, biases);
        },
      })),
    };
  }
}

/** The rows of a part, f32, block by block; `at` counts rows of the part. */
async function* rowsOf(
  reader: RowReader,
  { weight, first, count, stride }: Part,
  columns: number,
): AsyncGenerator<{ values: Float32Array<ArrayBuffer>; at: number }, void, undefined> {
  const rows = weight.shape.slice(0, -1).reduce((product, size) => product * size, 1);
  const most = Math.max(1, Math.floor(BLOCK_NUMBERS / columns));
  let at = 0;
  for (let start = first; start < rows; start += stride) {
    for (let row = 0; row < count; row += most) {
      const own = Math.min(most, count - row);
      yield { values: await reader.rows(weight, start + row, own), at };
      at += own;
    }
  }
}

async function vectorOf(
  reader: RowReader,
  { weight, shift }: Extract<Output, { kind: "vector" }>,
): Promise<ArrayBufferView<ArrayBuffer>> {
  if (shift === 0) return await reader.bytes(weight.parts.data);
  const values = await reader.rows({ ...weight, addend: undefined, shape: [1, weight.shape[0]] }, 0, 1);
  return values.map((value) => value + shift);
}

/** The bytes of a tensor as they are, or with its channels last. */
async function* stored(
  reader: RowReader,
  { tensor: { data, shape }, channelsLast }: Extract<Output, { kind: "copied" }>,
): AsyncGenerator<{ at: number; bytes: Uint8Array<ArrayBuffer>; numbers: number }, void, undefined> {
  const size = data.length / Math.max(1, shape.reduce((product, n) => product * n, 1));
  if (channelsLast) {
    yield { at: 0, bytes: turned(await reader.bytes(data), shape, size), numbers: data.length / size };
    return;
  }
  for (let at = 0; at < data.length; at += BLOCK_NUMBERS) {
    const length = Math.min(BLOCK_NUMBERS, data.length - at);
    const bytes = await reader.bytes({ ...data, offset: data.offset + at, length });
    yield { at, bytes, numbers: length / size };
  }
}

/** From [C', C, …] to [C', …, C], elements of `size` bytes. */
function turned(
  bytes: Uint8Array<ArrayBuffer>,
  shape: readonly number[],
  size: number,
): Uint8Array<ArrayBuffer> {
  const [outputs, channels] = shape;
  const inner = shape.slice(2).reduce((product, n) => product * n, 1);
  const result = new Uint8Array(bytes.length);
  for (let o = 0; o < outputs; o++) {
    for (let c = 0; c < channels; c++) {
      for (let i = 0; i < inner; i++) {
        const from = ((o * channels + c) * inner + i) * size, to = ((o * inner + i) * channels + c) * size;
        result.set(bytes.subarray(from, from + size), to);
      }
    }
  }
  return result;
}
