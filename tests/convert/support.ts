/** Conversions in temporary folders. */
import { openCheckpoint } from "../../src/checkpoint/open.ts";
import { quantize, type Quantized, type QuantizeOptions } from "../../src/convert/quantize.ts";
import { uniform } from "../../src/convert/recipe.ts";

/** A folder that goes away. */
export interface Converted extends AsyncDisposable {
  folder: string;
  result: Quantized;
}

/** Converts to 4 bits in groups of 64 unless told otherwise, without measuring. */
export async function converted(source: string, options: Partial<QuantizeOptions> = {}): Promise<Converted> {
  const parent = await Deno.makeTempDir({ prefix: "markbase-convert-" });
  const base = options.base ?? { bits: 4, groupSize: 64 };
  try {
    const result = await quantize(source, `${parent}/out`, {
      base,
      recipe: uniform(base),
      recipeName: "uniform",
      search: false,
      measure: false,
      ...options,
    });
    return {
      folder: result.folder,
      result,
      [Symbol.asyncDispose]: () => Deno.remove(parent, { recursive: true }),
    };
  } catch (error) {
    await Deno.remove(parent, { recursive: true });
    throw error;
  }
}

/** Every tensor of a checkpoint by name: dtype, shape and bytes. */
export async function tensorsOf(
  folder: string,
): Promise<Map<string, { dtype: string; shape: number[]; bytes: Uint8Array }>> {
  const { tensors, files } = await openCheckpoint(folder);
  const contents = await Promise.all(files.map(({ path }) => Deno.readFile(path)));
  return new Map(
    [...tensors.values()].map(({ name, dtype, shape, data: { file, offset, length } }) => [
      name,
      { dtype, shape, bytes: contents[file].subarray(offset, offset + length) },
    ]),
  );
}
