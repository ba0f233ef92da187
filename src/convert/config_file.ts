/** The `config.json` of a conversion: the original's with its numbers as they were spelled, and the quantisation. */
import { readText } from "../checkpoint/files.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import type { AffineFormat } from "./affine.ts";

/** Parts of JSON's source, which newer engines give and take. */
const { parse, rawJSON, stringify } = JSON as unknown as {
  parse(text: string, reviver: (key: string, value: unknown, context: { source: string }) => unknown): object;
  rawJSON(text: string): unknown;
  stringify(value: unknown, replacer: null, indent: number): string;
};

/** Readers in Python take a whole number for an integer, which these must not be. */
const FRACTIONS = new Set([
  "final_logit_softcapping",
  "attn_logit_softcapping",
  "rms_norm_eps",
  "rope_theta",
  "rope_local_base_freq",
  "partial_rotary_factor",
  "factor",
]);

/** The text of the file. Overrides are by module name; false for modules that were left alone. */
export async function configFile(
  { folder, metadata, rawConfig }: Checkpoint,
  base: AffineFormat,
  overrides: Readonly<Record<string, AffineFormat | false>>,
): Promise<string> {
  const config = metadata === null
    ? spelled((await readText(folder, "config.json", false))!)
    : fromGguf(rawConfig);
  const entry = ({ bits, groupSize }: AffineFormat) => ({ group_size: groupSize, bits, mode: "affine" });
  const modules = Object.entries(overrides).map(([module, format]) => [
    module,
    format === false ? false : entry(format),
  ]);
  const quantization = { ...entry(base), ...Object.fromEntries(modules) };
  // Readers look at one or the other.
  return stringify({ ...config, quantization, quantization_config: quantization }, null, 2) + "\n";
}

/** JSON whose numbers will be written as they were: 30.0 stays a fraction. */
function spelled(text: string): object {
  return parse(text, (_, value, { source }) => typeof value === "number" ? rawJSON(source) : value);
}

/** What a file's metadata says in the words of `config.json`, as Python's readers want it. */
function fromGguf(rawConfig: Record<string, unknown>): object {
  const family = String(rawConfig.model_type).startsWith("gemma3") ? "Gemma3" : "Gemma4";
  const config = {
    architectures: [`${family}ForCausalLM`],
    ...rawConfig,
    final_logit_softcapping: rawConfig.final_logit_softcapping || null,
    dtype: "bfloat16",
  };
  return parse(
    JSON.stringify(config),
    (key, value, { source }) =>
      FRACTIONS.has(key) && Number.isInteger(value) ? rawJSON(`${source}.0`) : value,
  );
}
