/** `quantize`: from an unquantised checkpoint or a GGUF file to one in the MLX format, tensor by tensor. */
import { parseConfig } from "../checkpoint/config.ts";
import { type Checkpoint, openCheckpoint } from "../checkpoint/open.ts";
import { load } from "../engine/load.ts";
import type { Progress } from "../engine/api.ts";
import { InvalidArgument } from "../errors.ts";
import { macrotask } from "../event_loop.ts";
import { localSource } from "../hub/source.ts";
import type { AffineFormat } from "./affine.ts";
import { type Block, blocksOf } from "./blocks.ts";
import { configFile } from "./config_file.ts";
import { type Divergence, divergence } from "./divergence.ts";
import { QuantizePool } from "./pool.ts";
import type { Recipe } from "./recipe.ts";
import { reportText } from "./report.ts";
import { RowReader } from "./rows.ts";
import { type InputStatistics, inputStatistics } from "./statistics.ts";
import { numbersOf, type Output, planOutputs } from "./tensors.ts";
import { type Samples, samplesFor } from "./texts.ts";
import { textFiles } from "./text_files.ts";
import { type Declared, FolderWriter, sizeOfDeclared } from "./writer.ts";

/** How to convert. */
export interface QuantizeOptions {
  /** for modules that the recipe does not treat otherwise */ base: AffineFormat;
  recipe: Recipe;
  /** for the report, such as "mixed_4_6" */ recipeName: string;
  /** choose scales by a search on calibration texts */ search: boolean;
  /** texts of the user's own */ text?: { name: string; content: string };
  /** compare with the original at the end */ measure: boolean;
  cache?: string;
  /** largest file in bytes; for tests */ shardBytes?: number;
  /** threads that quantise; 0 is the caller's own. Default: one for each core, none for small models */ threads?:
    number;
  onProgress?: (progress: Progress) => void;
  signal?: AbortSignal;
}

/** What came out. */
export interface Quantized {
  folder: string;
  recipe: string;
  /** of all weights, before and after */ sourceBytes: number;
  bytes: number;
  /** bits of an average text weight, scales and biases included */ bitsPerWeight: number;
  searched: boolean;
  /** null where it was not measured */ divergence: Divergence | null;
  /** texts that it was measured on; null where there is no tokenizer */ measuredOn: string | null;
  /** files of the model beside its weights that are missing, and other things to know */ notes: string[];
}

/** A model that is done before threads would have started. */
const SMALL_NUMBERS = 2 ** 24;

/**
 * Converts `source` into the folder `out`, which must not exist and appears complete or not at all. Rejects with
 * `InvalidArgument`, and otherwise like `load`.
 */
export async function quantize(
  source: string | URL,
  out: string,
  options: QuantizeOptions,
): Promise<Quantized> {
  const { signal, cache, onProgress } = options;
  const local = await localSource(source, {
    cache,
    signal,
    onProgress: onProgress && ((completed, total) => onProgress({ stage: "download", completed, total })),
  });
  const checkpoint = await openCheckpoint(local.path);
  refuseUnsuitable(checkpoint, String(source));
  await checkpoint.checkFinite();
  const normOffset = parseConfig(checkpoint.rawConfig, null).normWeightOffset;
  const { outputs, overrides } = planOutputs(checkpoint, options.recipe, options.base, normOffset);
  const samples = options.search || options.measure
    ? await samplesFor(checkpoint, options.text, signal)
    : null;
  const notes = [...local.warnings.map(({ message }) => message), ...notesOn(outputs)];
  const statistics = options.search ? await gather(checkpoint, samples, options) : null;

  const declared = outputs.flatMap(declarationsOf);
  await using writer = await FolderWriter.create(out, declared, options.shardBytes);
  await writeWeights(writer, checkpoint, outputs, statistics, options);
  await writer.closeWeights();
  await writer.file("config.json", await configFile(checkpoint, options.base, overrides));
  const text = await textFiles(checkpoint);
  for (const [name, content] of text.files) await writer.file(name, content);
  notes.push(...text.notes);

  const measured = options.measure && samples !== null
    ? await measure(local.path, writer.workFolder, samples, options)
    : null;
  if (options.measure && samples === null) {
    notes.push("The divergence was not measured, since there is no tokenizer.");
  }
  const result: Quantized = {
    folder: writer.folder,
    recipe: options.recipeName,
    sourceBytes: checkpoint.files.reduce((sum, { size }) => sum + size, 0),
    bytes: declared.reduce((sum, tensor) => sum + sizeOfDeclared(tensor), 0),
    bitsPerWeight: bitsPerWeight(outputs),
    searched: statistics !== null,
    divergence: measured,
    measuredOn: measured === null ? null : samples!.from,
    notes,
  };
  await writer.file("README.md", reportText(result, String(source), options.base));
  await writer.finish();
  return result;
}

/** Bits that the table of per-layer inputs should have at least: coarser, it is known to spoil the smaller models' answers. */
const TABLE_BITS = 8;

/** What is to be known of a plan before anything is measured. */
function notesOn(outputs: readonly Output[]): string[] {
  return outputs.flatMap((output) => {
    if (output.kind !== "quantised" || !output.module.endsWith("embed_tokens_per_layer")) return [];
    const { bits } = output.format;
    if (bits >= TABLE_BITS) return [];
    return [
      `The table of per-layer inputs has ${bits} bits. Models that have one lose most there: ` +
      `--mixed mixed_4_8 keeps it at ${TABLE_BITS}.`,
    ];
  });
}

function refuseUnsuitable({ config }: Checkpoint, source: string): void {
  if (config.drafter !== null) {
    throw new InvalidArgument(`${source} is a drafter, which is small already. Use it as it is.`);
  }
  if (config.quantization === null) return;
  throw new InvalidArgument(`${source} is quantised already. Convert the checkpoint that it was made from.`);
}

async function gather(
  checkpoint: Checkpoint,
  samples: Samples | null,
  { cache, signal, onProgress }: QuantizeOptions,
): Promise<InputStatistics> {
  if (samples === null) {
    throw new InvalidArgument(
      "The search needs texts, and the checkpoint has no tokenizer. Add tokenizer.json.",
    );
  }
  return await inputStatistics(checkpoint, samples.calibration, {
    cache,
    signal,
    onProgress: onProgress && ((completed, total) => onProgress({ stage: "calibrate", completed, total })),
  });
}

async function measure(
  original: string,
  conversion: string,
  samples: Samples,
  { cache, signal, onProgress }: QuantizeOptions,
): Promise<Divergence> {
  const contextLength = Math.max(...samples.held.map((ids) => ids.length)) + 1;
  const common = { device: "cpu", precision: "exact", kvCache: "f32", contextLength, cache, signal } as const;
  await using a = await load(original, common);
  await using b = await load(conversion, common);
  return await divergence(a, b, samples.held, {
    signal,
    onProgress: onProgress && ((completed, total) => onProgress({ stage: "measure", completed, total })),
  });
}

async function writeWeights(
  writer: FolderWriter,
  checkpoint: Checkpoint,
  outputs: readonly Output[],
  statistics: InputStatistics | null,
  { cache, signal, onProgress, threads }: QuantizeOptions,
): Promise<void> {
  const total = outputs.reduce((sum, output) => sum + numbersOf(output), 0);
  await using reader = new RowReader(checkpoint, { cache, signal });
  using pool = new QuantizePool(
    threads ?? (total < SMALL_NUMBERS ? 0 : Math.min(16, navigator.hardwareConcurrency)),
  );
  let done = 0;
  // Blocks that are being quantised, in order; one at a time is written.
  const pending: Block["work"][] = [];
  const writeOne = async () => {
    const { numbers, write } = await pending[0];
    pending.shift();
    await write();
    signal?.throwIfAborted();
    onProgress?.({ stage: "quantize", completed: done += numbers, total });
  };
  try {
    for (const output of outputs) {
      for await (const block of blocksOf(writer, reader, pool, output, statistics)) {
        pending.push(block.work);
        while (pending.length > pool.threads) await writeOne();
        await macrotask(); // timers and signals have their turn
      }
    }
    while (pending.length > 0) await writeOne();
  } finally {
    for (const block of pending) block.catch(() => {}); // the first failure is on its way already
  }
}

function declarationsOf(output: Output): Declared[] {
  switch (output.kind) {
    case "quantised": {
      const { module, shape, format: { bits, groupSize } } = output;
      const rows = shape.slice(0, -1), columns = shape.at(-1)!;
      return [
        { name: `${module}.weight`, dtype: "U32", shape: [...rows, columns * bits / 32] },
        { name: `${module}.scales`, dtype: "BF16", shape: [...rows, columns / groupSize] },
        { name: `${module}.biases`, dtype: "BF16", shape: [...rows, columns / groupSize] },
      ];
    }
    case "rounded":
      return [{ name: output.name, dtype: "BF16", shape: output.shape }];
    case "vector": {
      const { name, weight: { shape, format }, shift } = output;
      return [{
        name,
        dtype: shift === 0 ? format.kind.toUpperCase() as "BF16" | "F16" | "F32" : "F32",
        shape,
      }];
    }
    case "copied": {
      const { name, tensor: { dtype, shape }, channelsLast } = output;
      const [outputs, channels, ...inner] = shape;
      return [{
        name,
        dtype: dtype as Declared["dtype"],
        shape: channelsLast ? [outputs, ...inner, channels] : shape,
      }];
    }
  }
}

function bitsPerWeight(outputs: readonly Output[]): number {
  let bits = 0, numbers = 0;
  for (const output of outputs) {
    if (output.kind === "vector" || output.kind === "copied") continue;
    const count = numbersOf(output);
    numbers += count;
    bits += count * (output.kind === "rounded" ? 16 : output.format.bits + 32 / output.format.groupSize);
  }
  return bits / numbers;
}
