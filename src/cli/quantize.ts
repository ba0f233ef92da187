/** `markbase quantize`: a smaller copy of a model, in the MLX format. */
import { affineFormat, namedRecipe, recipeFromJson, RECIPES, uniform } from "../convert/recipe.ts";
import { quantize as convert } from "../convert/quantize.ts";
import { InvalidArgument } from "../errors.ts";
import { checkWords, describeFlags, parseFlags } from "./args.ts";
import { ProgressBar } from "./progress.ts";
import { bytes, write } from "./terminal.ts";
import { withoutByteOrderMark } from "../byte_order_mark.ts";

const flags = {
  bits: { type: "number", value: "N", help: "bits of a code: 2, 3, 4, 5, 6 or 8 (default: 4)" },
  group: { type: "number", value: "N", help: "columns that share a scale: 32, 64 or 128 (default: 64)" },
  mixed: {
    type: "string",
    value: "RECIPE",
    help: `more bits where it matters: ${RECIPES.join(", ")}, or FILE.json`,
  },
  search: {
    type: "boolean",
    help: "search for the scales with the least error on calibration texts (slower)",
  },
  text: {
    type: "string",
    value: "FILE",
    help: "text to calibrate and measure on, paragraphs parted by empty lines",
  },
  "no-measure": { type: "boolean", help: "do not compare the result with the original" },
  json: { type: "boolean", help: "print the result as one JSON object" },
} as const;

/** Help text of the command. */
export const help =
  `markbase quantize SOURCE OUT\n\nWrites a copy of an unquantised model or a GGUF file into the folder OUT, in the format of MLX, ` +
  `and tells how far\nits predictions are from the original's. FILE.json maps module patterns to formats, as in\n` +
  `{"*.down_proj": {"bits": 6, "group": 64}, "layers.0.*": false}; the first that fits decides, and --bits where none does.\n\n${
    describeFlags(flags)
  }`;

/** Runs the command with the words after its name. */
export async function quantize(args: string[], signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, flags);
  checkWords(words, 2);
  if (words.length < 2) {
    throw new InvalidArgument("Name the model and the new folder: markbase quantize SOURCE OUT.");
  }
  const base = affineFormat(values.bits ?? 4, values.group ?? 64, "--bits and --group");
  const { mixed } = values;
  let recipe = uniform(base);
  if (mixed?.endsWith(".json")) {
    recipe = recipeFromJson(await readFile(mixed, "--mixed"), mixed, recipe, base.groupSize);
  } else if (mixed !== undefined) {
    if (values.bits !== undefined) {
      throw new InvalidArgument(`--bits and --mixed ${mixed} exclude each other.`);
    }
    recipe = namedRecipe(mixed, base.groupSize);
  }
  using bar = new ProgressBar();
  const result = await convert(words[0], words[1], {
    base,
    recipe,
    recipeName: mixed ?? "uniform",
    search: values.search ?? false,
    text: values.text === undefined
      ? undefined
      : { name: values.text, content: await readFile(values.text, "--text") },
    measure: !values["no-measure"],
    onProgress: bar.update,
    signal,
  });
  bar.stop();
  if (values.json) return await write(Deno.stdout, JSON.stringify(result) + "\n");
  const { divergence } = result;
  const lines = [
    `${result.folder}: ${bytes(result.bytes)} instead of ${bytes(result.sourceBytes)}, ` +
    `${result.bitsPerWeight.toFixed(2)} bits a text weight`,
    ...(divergence === null ? [] : [
      `mean KL to the original ${divergence.kl.toPrecision(3)} nats a token, the same likeliest token for ` +
      `${(100 * divergence.agreement).toFixed(1)} % (${divergence.tokens} tokens of ${result.measuredOn})`,
    ]),
    ...result.notes.map((note) => `note: ${note}`),
  ];
  await write(Deno.stdout, lines.join("\n") + "\n");
}

async function readFile(path: string, flag: string): Promise<string> {
  try {
    return withoutByteOrderMark(await Deno.readTextFile(path));
  } catch (cause) {
    throw new InvalidArgument(`${flag}: ${path} cannot be read.`, { cause });
  }
}
