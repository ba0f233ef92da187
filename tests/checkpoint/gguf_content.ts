/** The contents of the GGUF fixtures, to be changed and written again. */
import { parseGguf } from "../../src/checkpoint/gguf.ts";
import { bytesSource } from "../support/bytes_source.ts";
import type { GgufContent, TensorEntry, Value } from "./gguf_writer.ts";
import { folderOf } from "./support.ts";

const TYPE_NUMBERS: Record<string, number> = {
  F32: 0,
  F16: 1,
  BF16: 30,
  Q4_0: 2,
  Q4_1: 3,
  Q5_0: 6,
  Q5_1: 7,
  Q8_0: 8,
  Q4_K: 12,
  Q5_K: 13,
  Q6_K: 14,
  IQ4_NL: 20,
};

/** What a row's file holds, to be changed and written again. */
export function contentOf(row: string): Required<Pick<GgufContent, "metadata" | "tensors">> {
  const bytes = Deno.readFileSync(`${folderOf(row)}/model.gguf`);
  const { metadata, tensors } = parseGguf(bytesSource(bytes), row, 0);
  const entries = metadata.keys().filter((key) => !key.startsWith("tokenizer.")).map(
    (key): [string, Value] => {
      const value = metadata.get(key);
      if (typeof value === "string") return [key, { type: "string", value }];
      if (typeof value === "number") return [key, { type: Number.isInteger(value) ? "u32" : "f32", value }];
      if (Array.isArray(value)) {
        return [key, { type: "array", of: typeof value[0] === "boolean" ? "bool" : "u32", value }];
      }
      throw new Error(`${key} is of no type that is written here`);
    },
  );
  return {
    metadata: entries,
    tensors: tensors.map(({ name, dtype, shape, data }): TensorEntry => ({
      name,
      shape,
      type: TYPE_NUMBERS[dtype],
      data: bytes.slice(data.offset, data.offset + data.length),
    })),
  };
}

/** See `contentOf`. */
export type Content = ReturnType<typeof contentOf>;

/** Gives an entry of the metadata another value, or takes it away. */
export function set(content: Content, key: string, value: Value | null): void {
  content.metadata = content.metadata.filter(([name]) => name !== key);
  if (value !== null) content.metadata.push([key, value]);
}

/** A whole number as a value. */
export const u32 = (value: number): Value => ({ type: "u32", value });
