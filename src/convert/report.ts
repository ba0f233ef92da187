/** The README.md that a conversion leaves beside its weights. */
import type { AffineFormat } from "./affine.ts";
import type { Quantized } from "./quantize.ts";
import { RECIPES } from "./recipe.ts";

/** The report as Markdown. */
export function reportText(result: Quantized, source: string, base: AffineFormat): string {
  const { divergence, measuredOn } = result;
  const gigabytes = (bytes: number) => `${(bytes / 1e9).toPrecision(3)} GB`;
  const name = /^[/.~]|^[a-z]+:/i.test(source)
    ? source.split(/[/\\]/).filter((part) => part !== "").at(-1)
    : source;
  const ownBits = RECIPES.includes(result.recipe); // a recipe by name has bits for every module
  const recipe = result.recipe === "uniform" ? [] : [`recipe ${result.recipe}`];
  const bits = [...(ownBits ? [] : [`${base.bits} bits`]), ...recipe].join(", ");
  const rows = [
    ["made from", `${name}, ${gigabytes(result.sourceBytes)}`],
    ["format", `MLX affine, ${bits}, groups of ${base.groupSize}`],
    ["size", `${gigabytes(result.bytes)}, ${result.bitsPerWeight.toFixed(2)} bits a text weight`],
    [
      "scales",
      result.searched ? "searched for the least error on calibration texts" : "by the range of each group",
    ],
    ...(divergence === null ? [] : [
      ["mean KL to the original", `${divergence.kl.toPrecision(3)} nats a token`],
      ["same likeliest token", `${(100 * divergence.agreement).toFixed(1)} %`],
      ["measured on", `${divergence.tokens} tokens of ${measuredOn}, none of which scales were chosen by`],
    ]),
  ];
  const table = ["| | |", "|---|---|", ...rows.map(([what, value]) => `| ${what} | ${value} |`)].join("\n");
  const notes = result.notes.length === 0 ? "" : `\n${result.notes.map((note) => `- ${note}`).join("\n")}\n`;
  return `# Quantised by markbase\n\n${table}\n${notes}`;
}
