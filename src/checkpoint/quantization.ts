/** The `quantization` entry that MLX converters write: a default for all modules and exceptions by module path. */
import { CheckpointError } from "../errors.ts";
import type { Fields } from "./fields.ts";
import { modulePath } from "./names.ts";
import type { AffineBits, AffineGroupSize, Format } from "./tensor.ts";

/** How the modules of a checkpoint are quantised. A module is quantised if the file has scales for it. */
export interface Quantization {
  /** For every module without an entry of its own. */
  base: Format;
  /** By module path without the text prefix; false for a module that was left alone. */
  modules: ReadonlyMap<string, Format | false>;
}

const KEYS_OF_BASE = new Set(["group_size", "bits", "mode", "quant_method"]);
const FIXED_MODES = {
  mxfp4: { bits: 4, groupSize: 32 },
  mxfp8: { bits: 8, groupSize: 32 },
  nvfp4: { bits: 4, groupSize: 16 },
} as const;

/** Reads `quantization`, else `quantization_config`; null without either. Throws `CheckpointError`. */
export function parseQuantization(top: Fields): Quantization | null {
  const fields = top.object("quantization") ?? top.object("quantization_config");
  if (fields === null) return null;
  const method = fields.get("quant_method");
  if (!fields.has("bits") || method !== undefined) {
    throw new CheckpointError(
      "unsupported_quantization",
      `config.json: quantization ${JSON.stringify(method ?? "without bits")} is not supported. ` +
        `Use a checkpoint in bf16, f16 or f32, or one quantised in the MLX format.`,
    );
  }
  const modules = new Map<string, Format | false>();
  for (const key of fields.keys()) {
    const value = fields.get(key);
    if (value === false) modules.set(modulePath(key), false);
    else if (!KEYS_OF_BASE.has(key) && typeof value === "object") {
      modules.set(modulePath(key), parseFormat(fields.object(key)!));
    }
  }
  return { base: parseFormat(fields), modules };
}

/** The format of one module. `path` is without the text prefix. False if the config says it was left alone. */
export function formatOf(quantization: Quantization, path: string): Format | false {
  return quantization.modules.get(path) ?? quantization.base;
}

function parseFormat(fields: Fields): Format {
  const mode = fields.oneOf("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"], "affine");
  if (mode === "affine") {
    const bits = fields.integer("bits");
    const groupSize = fields.integer("group_size", { or: 64 });
    if (![2, 3, 4, 5, 6, 8].includes(bits)) throw fields.wrong("bits", "2, 3, 4, 5, 6 or 8");
    if (![32, 64, 128].includes(groupSize)) throw fields.wrong("group_size", "32, 64 or 128");
    return { kind: "affine", bits: bits as AffineBits, groupSize: groupSize as AffineGroupSize };
  }
  const { bits, groupSize } = FIXED_MODES[mode];
  if (fields.integer("bits", { or: bits }) !== bits) throw fields.wrong("bits", `${bits} in mode ${mode}`);
  if (fields.integer("group_size", { or: groupSize }) !== groupSize) {
    throw fields.wrong("group_size", `${groupSize} in mode ${mode}`);
  }
  return { kind: mode };
}
