/** Reads the bytes of plans and input blocks back, by the layout of `dylib/plan.h` and `dylib/input.h` alone. */
import type { InputRow, OutputRow, PageTable, RunInput } from "../../src/engine/input.ts";

/** A tensor record. Dimensions from -1 down are symbols. */
export interface TensorRecord {
  format: number;
  buffer: number;
  offset: number;
  bits: number;
  group: number;
  scales: number;
  biases: number;
  dims: number[];
}

/** An op record. */
export interface OpRecord {
  kind: number;
  flags: number;
  layer: number;
  operands: number[];
  ints: number[];
  floats: number[];
}

/** A decoded plan. */
export interface PlanRecords {
  magic: number;
  version: number;
  flags: number;
  groups: number;
  vocabularySize: number;
  symbols: number[];
  buffers: { bytes: number; writable: number }[];
  tensors: TensorRecord[];
  ops: OpRecord[];
  /** tensor indices */ outputs: number[];
}

/** Decodes a plan; throws where bytes are missing or left over. */
export function decodePlan(bytes: Uint8Array): PlanRecords {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const u32 = () => view.getUint32((at += 4) - 4, true);
  const u32s = (count: number) => Array.from({ length: count }, u32);
  const i64 = () => Number(view.getBigInt64((at += 8) - 8, true));
  const f32 = () => view.getFloat32((at += 4) - 4, true);
  const records = <T>(count: number, read: () => T) => Array.from({ length: count }, read);
  const [magic, version, flags, buffers, tensors, ops, outputs, groups, vocabularySize] = u32s(9);
  u32s(3);
  const plan = {
    magic,
    version,
    flags,
    groups,
    vocabularySize,
    symbols: records(4, i64),
    buffers: records(buffers, () => {
      const record = { bytes: i64(), writable: u32() };
      u32();
      return record;
    }),
    tensors: records(tensors, () => {
      const [format, buffer] = u32s(2);
      const offset = i64();
      const [rank, bits, group, scales, biases] = u32s(6);
      return { format, buffer, offset, bits, group, scales, biases, dims: records(5, i64).slice(0, rank) };
    }),
    ops: records(ops, () => {
      const [kind, flags, layer] = u32s(4);
      return { kind, flags, layer, operands: u32s(20), ints: u32s(8), floats: records(8, f32) };
    }),
    outputs: records(outputs, () => u32s(2)[0]),
  };
  if (at !== bytes.length) throw new RangeError(`The plan has ${bytes.length} bytes, its records ${at}.`);
  return plan;
}

/** Decodes an input block of a plan with these groups and vocabulary; throws where bytes are missing or left over. */
export function decodeInput(bytes: Uint8Array, groups: number, vocabularySize: number): RunInput {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const u32 = () => view.getUint32((at += 4) - 4, true);
  const f32 = () => view.getFloat32((at += 4) - 4, true);
  const u32s = (count: number) => Array.from({ length: count }, u32);
  const f32s = (count: number) => Array.from({ length: count }, f32);
  const [magic, version, rows, outRows, sequences, entries, outputMask, adjustments, masks, extras] = u32s(
    10,
  );
  if (magic !== 0x4e49424d || version !== 1) {
    throw new RangeError("The input block has a wrong magic or version.");
  }
  u32s(6);
  const [token, position, sequence, rowClass] = [u32s(rows), u32s(rows), u32s(rows), u32s(rows)];
  const outRow = u32s(outRows);
  const spans = Array.from({ length: groups }, () => [u32s(sequences), u32s(sequences), u32s(sequences)]);
  const table = u32s(entries);
  const start = u32s(outRows + 1);
  const [ids, multiply, add] = [u32s(adjustments), f32s(adjustments), f32s(adjustments)];
  const [temperature, maskOf] = [f32s(outRows), u32s(outRows)];
  const words = Math.ceil(vocabularySize / 32);
  const masksRead = Array.from({ length: masks }, () => Uint32Array.from(u32s(words)));
  const softRow = extras & 1 ? u32s(rows) : undefined;
  const blocks = extras & 2 ? { first: u32s(rows), last: u32s(rows) } : undefined;
  const extra = (i: number): Pick<InputRow, "soft" | "block"> => ({
    ...(softRow === undefined || softRow[i] === 0xffffffff ? {} : { soft: softRow[i] }),
    ...(blocks === undefined || blocks.first[i] === blocks.last[i]
      ? {}
      : { block: [blocks.first[i], blocks.last[i]] as const }),
  });
  if (at !== bytes.length) {
    throw new RangeError(`The input block has ${bytes.length} bytes, its arrays ${at}.`);
  }
  return {
    rows: token.map((token, i) => ({
      token,
      position: position[i],
      sequence: sequence[i],
      rowClass: rowClass[i] === 1 ? "decode" : "prefill",
      ...extra(i),
    })),
    outputs: outRow.map((row, i): OutputRow => ({
      row,
      adjustments: ids.map((id, n) => ({ id, multiply: multiply[n], add: add[n] })).slice(
        start[i],
        start[i + 1],
      ),
      temperature: temperature[i],
      mask: maskOf[i] === 0xffffffff ? undefined : masksRead[maskOf[i]],
    })),
    sequences: Array.from(
      { length: sequences },
      (_, s) =>
        spans.map(([starts, firsts, counts]): PageTable => ({
          first: firsts[s],
          pages: table.slice(starts[s], starts[s] + counts[s]),
        })),
    ),
    groups,
    vocabularySize,
    outputMask,
  };
}
