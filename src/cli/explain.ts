/** `markbase explain`: what a model costs on a device, before running it; a config alone is enough. */
import { explain as explainSource, type Explanation } from "../../mod.ts";
import { checkWords, describeFlags, parseFlags } from "./args.ts";
import { bytes, style, table, write } from "./terminal.ts";

const flags = {
  model: {
    type: "string",
    value: "SOURCE",
    help: "folder with a config.json, weights optional; .gguf file, org/name on the hub (default: tiny)",
  },
  on: {
    type: "string",
    value: "NAME",
    help: 'chip to predict for, such as "M4 Max" or "H200" (default: cpu)',
  },
  rows: { type: "number", value: "N", help: "tokens in the forward; more than 16 are a prompt (default: 1)" },
  context: {
    type: "number",
    value: "N",
    help: "tokens in the cache before (default: 1024 where the context allows)",
  },
  "matrix-units": {
    type: "boolean",
    help: "decode rows take a GPU's matrix units, as with this flag elsewhere",
  },
  ops: { type: "boolean", help: "list every op as well" },
  json: { type: "boolean", help: "print everything as one JSON object" },
} as const;

/** Help text of the command. */
export const help =
  `markbase explain [SOURCE]\n\nPrints the plan of one forward: layers, cache, bytes, operations, predicted time.\n\n${
    describeFlags(flags)
  }`;

/** Runs the command with the words after its name. */
export async function explain(args: string[], _signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, flags);
  checkWords(words, values.model === undefined ? 1 : 0);
  const explanation = await explainSource(values.model ?? words[0] ?? "tiny", {
    ...(values.on === undefined ? {} : { device: values.on }),
    ...(values.rows === undefined ? {} : { rows: values.rows }),
    ...(values.context === undefined ? {} : { context: values.context }),
    ...(values["matrix-units"] === undefined ? {} : { matrixUnits: values["matrix-units"] }),
  });
  await write(
    Deno.stdout,
    (values.json ? JSON.stringify(explanation) : describe(explanation, values.ops ?? false)) + "\n",
  );
}

/** The explanation as text: a summary, the layers and, if wanted, the ops. */
export function describe(explanation: Explanation, withOps: boolean): string {
  const { model, totals, device } = explanation;
  const milliseconds = (seconds: number) => `${(seconds * 1e3).toPrecision(3)} ms`;
  const summary = [
    `${model.modelType}: ${model.layers} layers, hidden ${model.hiddenSize}, vocabulary ${model.vocabularySize}` +
    (model.perLayerInputSize > 0 ? `, per-layer inputs ${model.perLayerInputSize}` : ""),
    `weights ${bytes(model.weightBytes)}`,
    ...explanation.groups.map((group) =>
      `KV cache, ${group.name}: ${group.layers.length} layers own it, ${bytes(group.bytesPerToken)} a token` +
      (group.window === null ? "" : `, window ${group.window}`)
    ),
    `one ${explanation.variant} of ${explanation.rows} token${explanation.rows === 1 ? "" : "s"} after ` +
    `${explanation.context} in the cache: ${totals.dispatches} dispatches, ${bytes(totals.bytes)} moved, ` +
    `${(totals.flops / 1e9).toPrecision(3)} GFLOP`,
    `predicted on ${device.name}: ${milliseconds(totals.seconds)}, ${
      milliseconds(totals.secondsPerToken)
    } a token`,
  ];
  const layers = table([
    ["layer", "kind", "head", "heads", "KV", "KV from", "MLP", "window", "weights", "dispatches", "time"],
    ...explanation.layers.map((layer) => [
      layer.index,
      layer.kind,
      layer.headDim,
      layer.heads,
      layer.kvHeads,
      layer.kvOwner === layer.index ? "own" : String(layer.kvOwner),
      layer.mlpWidth,
      layer.window === null ? "all" : String(layer.window),
      bytes(layer.weightBytes),
      layer.dispatches,
      milliseconds(layer.seconds),
    ]),
  ]);
  const ops = withOps
    ? table([
      ["layer", "op", "rows", "dispatches", "bytes", "MFLOP", "time"],
      ...explanation.ops.map((op) => [
        op.layer === null ? "" : String(op.layer),
        op.op,
        op.rows,
        op.dispatches,
        bytes(op.bytes),
        (op.flops / 1e6).toPrecision(3),
        milliseconds(op.seconds),
      ]),
    ])
    : "";
  return [summary.join("\n"), layers, ops].filter((part) => part !== "").join("\n\n").replace(
    /^layer.*$/gm,
    (line) => style(line, "bold"),
  );
}
